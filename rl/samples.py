"""From selected rollouts to the samples of each optimizer update.

Groups stay whole, rejected ones are left out, and a token's weight carries the mean over all that is left:
what was rejected is in no denominator (rules 1 and 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl.config import RLConfig
from rl.roc import Rejection, Selection
from rl.trajectory import Rollout


@dataclass(frozen=True)
class Sample:
    """One kept rollout, ready to be learned. Arrays are [T]: prompt and response together."""

    ids: np.ndarray
    mask: np.ndarray  # 1 on tokens that the model sampled
    engine_logprobs: np.ndarray
    advantage: float
    weight: float  # of each of its learned tokens


def update_batches(
    groups: Sequence[Sequence[Rollout]],
    selections: Sequence[Selection | Rejection],
    config: RLConfig,
) -> list[list[Sample]]:
    """A batch an optimizer update; empty if every group was rejected."""
    kept = [
        (group, selection)
        for group, selection in zip(groups, selections, strict=True)
        if isinstance(selection, Selection)
    ]
    for _, selection in kept:
        if config.roc.selection != "all" and len(selection.kept) != config.roc.kept:
            raise AssertionError(
                f"a group of {len(selection.kept)} was kept, not {config.roc.kept}"
            )
    updates = min(config.loss.updates_per_batch, len(kept))
    return [_batch(kept[i::updates], config.loss.aggregation) for i in range(updates)]


def _batch(kept: list[tuple[Sequence[Rollout], Selection]], aggregation: str) -> list[Sample]:
    rows = [
        (group[i], advantage, number)
        for number, (group, selection) in enumerate(kept)
        for i, advantage in zip(selection.kept, selection.advantages, strict=True)
    ]
    weights = token_weights(
        [rollout.sampled_tokens for rollout, _, _ in rows],
        [number for _, _, number in rows],
        aggregation,
    )
    return [
        sample(rollout, advantage, weight)
        for (rollout, advantage, _), weight in zip(rows, weights, strict=True)
    ]


def sample(rollout: Rollout, advantage: float, weight: float) -> Sample:
    """Prompt and response in one row."""
    prompt = np.zeros(len(rollout.prompt_ids))
    return Sample(
        ids=np.array(rollout.prompt_ids + rollout.response_ids, dtype=np.int64),
        mask=np.concatenate([prompt, rollout.mask]).astype(np.int8),
        engine_logprobs=np.concatenate([prompt, rollout.logprobs]).astype(np.float32),
        advantage=advantage,
        weight=weight,
    )


def token_weights(lengths: list[int], groups: list[int], aggregation: str) -> list[float]:
    """The weight of each token of each sequence, from learned tokens and group number a sequence.

    `batch`: every token counts the same; `group`: every group counts the same, its tokens share it.
    """
    if aggregation == "batch":
        return [1.0 / sum(lengths)] * len(lengths)
    totals: dict[int, int] = {}
    for length, group in zip(lengths, groups, strict=True):
        totals[group] = totals.get(group, 0) + length
    return [1.0 / (totals[group] * len(totals)) for group in groups]
