"""From samples to the tensors of one forward pass.

A micro-batch is either padded (a row a sequence, filled up on the right) or packed (one row, sequences end
to end, `starts` says where). Neither needs an attention mask: attention is causal, so what stands to the
right of a token cannot reach it, and packed attention stays inside each sequence by `starts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl.packing import FILL_TOKENS
from rl.samples import Sample


@dataclass
class TokenBatch:
    """Tensors are [B, T] unless said otherwise; position t describes token t of the row."""

    ids: Tensor  # int64
    positions: Tensor  # int64, within the token's own sequence
    mask: Tensor  # 1 on tokens that the model sampled and that are learned
    advantages: Tensor
    weights: Tensor  # the token's share in the mean; 0 where mask is 0
    engine_logprobs: Tensor
    scored: Tensor  # int64 [N]: flat places of the tokens to score, at least one
    starts: Tensor | None  # int32 [sequences + 1]: bounds of the sequences of a packed row
    longest: int  # tokens of the longest sequence

    def to(self, device: torch.device) -> TokenBatch:
        moved = {
            k: v.to(device, non_blocking=True)
            for k, v in vars(self).items()
            if isinstance(v, Tensor)
        }
        return TokenBatch(**vars(self) | moved)


def collate(samples: list[Sample], packed: bool) -> TokenBatch:
    """An empty micro-batch becomes one dummy sequence of weight 0, so that its forward and backward pass
    still take part in the collectives."""
    if not samples:
        empty = np.zeros(FILL_TOKENS)
        samples = [Sample(empty.astype(np.int64), empty, empty, 0.0, 0.0)]
    if any(len(s.ids) < 2 or s.mask[0] for s in samples):
        raise ValueError(
            "a sample needs a prompt: its first token has nothing before it and cannot be learned"
        )
    lengths = [len(sample.ids) for sample in samples]
    longest = max(lengths)

    def rows(parts: list[np.ndarray], dtype: torch.dtype) -> Tensor:
        if packed:
            return torch.tensor(np.concatenate(parts), dtype=dtype).unsqueeze(0)
        out = torch.zeros(len(parts), longest, dtype=dtype)
        for i, part in enumerate(parts):
            out[i, : len(part)] = torch.tensor(part, dtype=dtype)
        return out

    mask = rows([s.mask for s in samples], torch.float32)
    learned = mask.flatten().nonzero().squeeze(1)
    return TokenBatch(
        ids=rows([s.ids for s in samples], torch.int64),
        positions=rows([np.arange(n) for n in lengths], torch.int64),
        mask=mask,
        advantages=rows([s.mask * s.advantage for s in samples], torch.float32),
        weights=rows([s.mask * s.weight for s in samples], torch.float32),
        engine_logprobs=rows([s.engine_logprobs for s in samples], torch.float32),
        scored=learned if len(learned) else torch.tensor([1]),
        starts=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32) if packed else None,
        longest=longest,
    )
