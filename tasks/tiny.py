"""The demo's model, made from nothing: a byte-level BPE trained on the SFT texts, and a random Qwen3.

The tokenizer keeps conversations short, because on a CPU every token costs: digits and newlines stand alone
(numbers are copied digit by digit, and the template's lines never merge with the model's text), all other
text merges freely, the template's tags are tokens of their own, and so is the constant system text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rl.config import TemplateConfig
from rl.template import IM_END, IM_START, TAGS, chat_template, system_text
from tasks.config import TinyModelConfig

PAD = "<|endoftext|>"
# Standard deviation of the random weights. The usual 0.02 is for widths in the thousands: at this width the
# model then needs three times the steps until it copies numbers.
INIT_STD = 0.06
ROLES = ("system", "user", "assistant")


def build_tokenizer(
    texts: Iterable[str], vocabulary: int, template: TemplateConfig
) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` tokens for conversations with the contents `texts`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\d\n]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    controls = [
        AddedToken(token, special=True, normalized=False) for token in (PAD, IM_START, IM_END)
    ]
    # Not special: whoever decodes without special tokens must still see the calls and the answer.
    tags = [
        AddedToken(token, special=False, normalized=False)
        for token in (*TAGS, system_text(template))
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(controls) - len(tags),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_untagged(texts), trainer)
    bpe.add_special_tokens(controls)
    bpe.add_tokens(tags)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=IM_END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = chat_template(template)
    return tokenizer


def _untagged(texts: Iterable[str]) -> Iterator[str]:
    """What lies between the tags, as the BPE will meet it, and the role names."""
    between = re.compile("|".join(map(re.escape, TAGS)))
    for text in texts:
        yield from ROLES
        yield from filter(None, between.split(text))


def build_model(
    tokenizer: PreTrainedTokenizerFast, config: TinyModelConfig, positions: int, seed: int
) -> Qwen3ForCausalLM:
    """A Qwen3 with random weights that takes `positions` tokens."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=config.mlp,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            head_dim=config.head_dim,
            max_position_embeddings=positions,
            initializer_range=INIT_STD,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
