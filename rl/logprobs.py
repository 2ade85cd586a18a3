"""A causal language model as a function from tokens to their log-probabilities and entropies.

Only tokens that are learned are scored: prompts, tool responses and padding never meet the vocabulary. The
logits of the whole batch never exist at once either: a chunk of tokens is projected, reduced to two numbers
a token, and projected again in the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rl.batch import TokenBatch


class LogProbs(nn.Module):
    """Under FSDP the head belongs to this, the root module, so it is whole from the first chunk's forward
    to the last chunk's second projection."""

    def __init__(self, model: nn.Module, chunk_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.chunk_tokens = chunk_tokens

    def forward(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Both results are [B, T], float32: entry t is about token t given the tokens before it, and 0 where
        the token is not scored. Entropies carry no gradient."""
        bounds = {}
        if batch.starts is not None:
            bounds = {
                "cu_seq_lens_q": batch.starts,
                "cu_seq_lens_k": batch.starts,
                "max_length_q": batch.longest,
                "max_length_k": batch.longest,
            }
        # With a cache, transformers would let a packed row's sequences see each other.
        hidden = self.model.model(
            input_ids=batch.ids, position_ids=batch.positions, use_cache=False, **bounds
        ).last_hidden_state
        before = hidden.flatten(0, 1)[batch.scored - 1]
        targets = batch.ids.flatten()[batch.scored]
        parts = [
            checkpoint(_project, self.model.lm_head, states, ids, use_reentrant=False)
            for states, ids in zip(
                before.split(self.chunk_tokens), targets.split(self.chunk_tokens), strict=True
            )
        ]
        places = (batch.scored // batch.ids.shape[1], batch.scored % batch.ids.shape[1])
        zeros = torch.zeros(batch.ids.shape, device=hidden.device)
        logprobs, entropies = (torch.cat(part) for part in zip(*parts, strict=True))
        return zeros.index_put(places, logprobs), zeros.index_put(places, entropies)


def _project(head: nn.Module, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    total = logits.logsumexp(-1)
    with torch.no_grad():
        entropy = total - ((logits - total.unsqueeze(-1)).exp() * logits).sum(-1)
    return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - total, entropy


@dataclass(frozen=True)
class ModelShape:
    """What a dense transformer costs, in floating-point operations."""

    body: int  # weights of the matrix products that every token goes through
    head: int  # and of the one that only scored tokens go through
    layers: int
    attention_width: int  # heads * head size

    def training_flops(self, tokens: int, scored: int | None = None) -> float:
        """Forward and backward over one sequence, nothing computed twice; unset: every token is scored."""
        products = 2 * self.body * tokens + 2 * self.head * (tokens if scored is None else scored)
        attention = 2 * self.layers * self.attention_width * tokens**2  # causal: half of the square
        return 3 * (products + attention)


def model_shape(model: nn.Module) -> ModelShape:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    linear = [module for module in model.model.modules() if isinstance(module, nn.Linear)]
    return ModelShape(
        body=sum(module.weight.numel() for module in linear),
        head=model.lm_head.weight.numel(),
        layers=config.num_hidden_layers,
        attention_width=config.num_attention_heads * head_dim,
    )
