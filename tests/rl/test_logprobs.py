"""Packed, padded, one by one, in chunks or whole: the same log-probabilities, entropies and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl.attention import choose, register
from rl.batch import collate
from rl.config import LearnerConfig
from rl.logprobs import LogProbs, model_shape
from rl.samples import Sample
from sandbox.errors import UserError

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
EXACT = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture(params=["qwen3", "qwen2-tied", "llama"])
def model(request):
    register()
    torch.manual_seed(0)
    if request.param == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=False))
    if request.param == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))


def samples() -> list[Sample]:
    rng = np.random.default_rng(1)
    rows = []
    for n in (33, 2, 7, 58, 12):
        mask = (rng.random(n) < 0.7).astype(np.int8)
        mask[0], mask[-1] = 0, 1
        rows.append(Sample(rng.integers(0, 64, n), mask, np.zeros(n), 1.0, 1.0))
    return rows


def run(
    model, groups: list[list[Sample]], packed: bool, attention: str, chunk: int = 11
) -> dict[str, torch.Tensor]:
    """Scores of all learned tokens in order, and the gradient of a weighted sum of them."""
    model.set_attn_implementation(attention)
    model.zero_grad()
    scores: dict[str, list[torch.Tensor]] = {"logprobs": [], "entropies": []}
    for group in groups:
        batch = collate(group, packed)
        logprobs, entropies = LogProbs(model, chunk)(batch)
        (logprobs * (1 + batch.ids % 5)).sum().backward()
        scores["logprobs"].append(logprobs[batch.mask.bool()].detach())
        scores["entropies"].append(entropies[batch.mask.bool()])
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()]) / 100  # about a token's
    return {name: torch.cat(parts) for name, parts in scores.items()} | {"gradients": gradients}


def plain(model, rows: list[Sample]) -> dict[str, torch.Tensor]:
    """The same from whole logits, one sequence at a time, without any of our code."""
    model.set_attn_implementation("sdpa")
    model.zero_grad()
    logprobs, entropies = [], []
    for row in rows:
        ids = torch.tensor(row.ids)
        scores = model(ids[None]).logits[0, :-1].log_softmax(-1)
        chosen = scores.gather(-1, ids[1:, None])[:, 0]
        learned = torch.tensor(row.mask[1:]).bool()
        (chosen * (1 + ids[1:] % 5))[learned].sum().backward()
        logprobs.append(chosen[learned].detach())
        entropies.append(-(scores.exp() * scores).sum(-1)[learned].detach())
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()]) / 100  # about a token's
    return {
        "logprobs": torch.cat(logprobs),
        "entropies": torch.cat(entropies),
        "gradients": gradients,
    }


def test_layouts_and_chunks_equal_whole_logits_one_by_one(model):
    rows = samples()
    expected = plain(model, rows)
    results = {
        "padded": run(model, [rows], False, "sdpa"),
        "packed": run(model, [rows], True, "varlen"),
        "packed, transformers' own mask": run(model, [rows], True, "sdpa"),
        "packed in two": run(model, [rows[:2], rows[2:]], True, "varlen"),
        "one by one": run(model, [[row] for row in rows], True, "varlen"),
        "one chunk": run(model, [rows], True, "varlen", chunk=10_000),
        "chunks of one": run(model, [rows], True, "varlen", chunk=1),
    }
    for name, result in results.items():
        for part, values in result.items():
            torch.testing.assert_close(
                values, expected[part], **EXACT, msg=lambda m, n=name, p=part: f"{n} {p}: {m}"
            )


def test_a_packed_sequence_does_not_see_its_neighbours(model):
    rows = samples()
    others = [Sample((row.ids + 1) % 64, row.mask, row.engine_logprobs, 1.0, 1.0) for row in rows]
    mixed = run(model, [[*others[:2], rows[2], *others[3:]]], True, "varlen")["logprobs"]
    alone = run(model, [[rows[2]]], True, "varlen")["logprobs"]
    before = int(sum(row.mask.sum() for row in rows[:2]))
    torch.testing.assert_close(mixed[before : before + len(alone)], alone, **EXACT)


def test_a_sample_without_prompt_is_refused():
    with pytest.raises(ValueError, match="needs a prompt"):
        collate([Sample(np.array([1, 2]), np.array([1, 1]), np.zeros(2), 1.0, 1.0)], packed=True)


def test_the_layout_follows_the_model():
    full, mixed = (
        Qwen3Config(**SIZES),
        Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    )
    auto = LearnerConfig()
    assert choose(auto, Qwen3ForCausalLM, full) == (True, "varlen")
    assert choose(auto, Qwen3ForCausalLM, mixed) == (False, "sdpa")
    assert choose(LearnerConfig(packing="padded"), Qwen3ForCausalLM, full) == (False, "sdpa")
    assert choose(LearnerConfig(attention="flash_attention_2"), Qwen3ForCausalLM, full) == (
        True,
        "flash_attention_2",
    )
    with pytest.raises(UserError, match="sliding_attention"):
        choose(LearnerConfig(packing="packed"), Qwen3ForCausalLM, mixed)
    with pytest.raises(UserError, match="for packed rows"):
        choose(LearnerConfig(packing="padded", attention="varlen"), Qwen3ForCausalLM, full)


def test_flops_are_six_a_weight_and_attention_on_top(model):
    shape = model_shape(model)
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert shape.training_flops(10) == 60 * weights + 6 * 2 * 64 * 100
    assert shape.training_flops(10) - shape.training_flops(10, scored=7) == 3 * 6 * 64 * 64
