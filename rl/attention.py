"""Attention inside the sequences of a packed row, and the choice between packed and padded.

`varlen` is registered with transformers and told where sequences begin. On a GPU that computes in half
precision it is torch's variable-length flash attention; elsewhere one causal attention a sequence, so no
work is done between sequences on any device. It reads nothing but `starts`: position ids only turn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rl.config import LearnerConfig
from sandbox.errors import UserError

VARLEN = "varlen"
FLASH_CAPABILITY = (8, 0)  # compute capability that torch's flash attention needs


def register() -> None:
    """Make `varlen` known to transformers as an attention implementation."""
    from transformers import AttentionInterface

    AttentionInterface.register(VARLEN, varlen_attention)


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query: [1, H, T, D], key and value: [1, H_kv, T, D]; returns [1, T, H, D]."""
    if cu_seq_lens_q is None or attention_mask is not None or query.shape[0] != 1 or dropout:
        raise ValueError(
            "varlen attention takes one packed row with its starts, without a mask or dropout; got "
            f"{query.shape[0]} rows, starts {cu_seq_lens_q}, dropout {dropout}"
        )
    if _has_flash(query):
        from torch.nn.attention.varlen import varlen_attn

        out = varlen_attn(
            *(x[0].transpose(0, 1) for x in (query, key, value)),
            cu_seq_lens_q,
            cu_seq_lens_q,
            max_length_q,
            max_length_q,
            scale=scaling,
            window_size=(-1, 0),  # causal
            enable_gqa=True,
        )
        return out.unsqueeze(0), None
    parts = cu_seq_lens_q.diff().tolist()
    outs = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        for q, k, v in zip(*(x.split(parts, dim=2) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(outs, dim=2).transpose(1, 2), None


def _has_flash(query: Tensor) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16)
    return (
        query.is_cuda
        and half
        and torch.cuda.get_device_capability(query.device) >= FLASH_CAPABILITY
    )


def choose(config: LearnerConfig, model_class: type[Any], model_config: Any) -> tuple[bool, str]:
    """(packed?, attention implementation) for this model."""
    obstacle = _obstacle(model_class, model_config)
    if config.packing == "packed" and obstacle:
        raise UserError(
            f"learner.packing is 'packed', but {model_class.__name__} {obstacle}; use 'padded' or 'auto'"
        )
    packed = config.packing != "padded" and not obstacle
    attention: str = config.attention
    if attention == "auto":
        attention = VARLEN if packed else "sdpa"
    if attention == VARLEN and not packed:
        raise UserError(
            "learner.attention 'varlen' is for packed rows; use 'sdpa', or learner.packing: packed"
        )
    return packed, attention


def _obstacle(model_class: type[Any], model_config: Any) -> str | None:
    """Why sequences of this model cannot share a row, if they cannot."""
    if not getattr(model_class, "_supports_attention_backend", False):
        return "does not take its attention from transformers' attention interface"
    kinds = set(getattr(model_config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return (
            f"has layers other than full attention: {', '.join(sorted(kinds - {'full_attention'}))}"
        )
    return None
