"""The objective of GRPO-RoC (equation 4 of the report, with recipe rules 6 and 7).

A token's term is

    -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) * min(pi_old / pi_engine, cap)

with ratio = pi / pi_old and no gradient through the last factor. The loss is the sum of the terms, each
times its `weight`; the weights carry the normalisation (over the whole batch, all ranks included), so
that micro-batches and ranks only ever add.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl.batch import TokenBatch
from rl.config import LossConfig


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, batch: TokenBatch, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss (a scalar) and *sums* over learned tokens for the log; all inputs are [B, T].

    `mismatch_kl` is the k3 estimate of KL(engine || learner) in nats, from the engine's own samples.
    """
    mask = batch.mask.bool()
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    term = torch.min(ratio * batch.advantages, clipped * batch.advantages)

    engine_log_ratio = torch.where(mask, old_logprobs - batch.engine_logprobs, 0.0).detach()
    correction = engine_log_ratio.exp().clamp(max=config.importance_cap)
    loss = -(term * correction * batch.weights).sum()

    with torch.no_grad():
        low = (ratio < 1 - config.clip_low) & (batch.advantages < 0)
        high = (ratio > 1 + config.clip_high) & (batch.advantages > 0)
        sums = {
            "tokens": mask.sum(),
            "clipped": ((low | high) & mask).sum(),
            "mismatch_kl": (engine_log_ratio.exp() - 1 - engine_log_ratio).sum(),
            "importance_capped": (engine_log_ratio.exp() > config.importance_cap).sum(),
        }
    return loss, sums
