"""The tiny tokenizer and model: short conversations, exact round trips, an ordinary model directory."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rl.config import TemplateConfig
from rl.template import IM_END, TAGS, chat_template
from sandbox.errors import UserError
from tasks.base import check_base, load_model, load_tokenizer
from tasks.config import ModelConfig, TinyModelConfig
from tasks.tiny import PAD, build_model, build_tokenizer

TEXTS = [
    f"<reason>I compute {i}*{i + 1}.</reason><answer>\\boxed{{{i * i}}}</answer>"
    for i in range(200)
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(TEXTS, 500, TemplateConfig())


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@settings(deadline=None, max_examples=60)
def test_any_text_survives_encoding(text: str, tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_tags_are_tokens_and_digits_stand_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) <= 500
    for tag in (*TAGS, IM_END):
        assert len(tokenizer.encode(tag, add_special_tokens=False)) == 1
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(TEXTS[12], add_special_tokens=False)]
    assert pieces[:3] == ["<reason>", "I compute ", "1"]
    assert len(pieces) < 20


def test_calls_and_answers_survive_decoding_without_special_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    ids = tokenizer.encode("<answer>3</answer>" + IM_END, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<answer>3</answer>"


def test_a_tiny_model_directory_is_an_ordinary_one(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = build_model(tokenizer, TinyModelConfig(layers=1), 128, seed=0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor([again.encode(TEXTS[3], add_special_tokens=False)])
    assert ids.tolist()[0] == tokenizer.encode(TEXTS[3], add_special_tokens=False)
    assert again.chat_template == chat_template(TemplateConfig())
    assert (again.eos_token, again.pad_token) == (IM_END, PAD)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.config.head_dim == 32
    assert loaded.config.tie_word_embeddings


def test_the_seed_decides_the_weights(tokenizer: PreTrainedTokenizerFast) -> None:
    def first(seed: int) -> torch.Tensor:
        return next(build_model(tokenizer, TinyModelConfig(layers=1), 128, seed).parameters())

    assert torch.equal(first(3), first(3))
    assert not torch.equal(first(3), first(4))


def test_a_local_base_gets_our_template_and_stop_token(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    build_model(tokenizer, TinyModelConfig(layers=1), 128, seed=0).save_pretrained(tmp_path)
    other = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token=PAD)
    other.save_pretrained(tmp_path)
    base = ModelConfig(base=str(tmp_path))
    loaded = load_tokenizer(base, TemplateConfig(tool_name="python"), curated=tmp_path / "nothing")
    assert loaded.eos_token == loaded.pad_token == IM_END
    assert '\\"python\\"' in loaded.chat_template
    model = load_model(base, loaded, "bfloat16", 128, seed=0)
    assert model.dtype == torch.bfloat16


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no directory /nowhere/model"):
        check_base("/nowhere/model")
    with pytest.raises(UserError, match="there is no directory a/b/c"):
        check_base("a/b/c")
    with pytest.raises(UserError, match=r"holds no model \(no config.json\)"):
        check_base(str(tmp_path))
    check_base("tiny")
    check_base("Qwen/Qwen3-14B-Base")


def test_a_hub_id_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"the tokenizer of nobody/nothing could not be loaded"):
        load_tokenizer(ModelConfig(base="nobody/nothing"), TemplateConfig(), Path())
