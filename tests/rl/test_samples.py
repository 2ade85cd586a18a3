from __future__ import annotations

import numpy as np
import pytest

from rl.config import RLConfig
from rl.roc import Rejection, generator, select
from rl.samples import token_weights, update_batches
from rl.trajectory import Rollout, StopReason


def rollout(tokens: int, reward: float) -> Rollout:
    return Rollout(
        "p", [7, 8], list(range(tokens)), [1] * (tokens - 1) + [0], [-1.0] * tokens,
        stop=StopReason.ANSWERED, reward=reward,
    )  # fmt: skip


def batches(rewards: list[list[float]], **loss: object):
    config = RLConfig(roc={"rollouts": 4, "kept": 2}, loss=loss)
    groups = [[rollout(5 + i, reward) for i, reward in enumerate(group)] for group in rewards]
    selections = [select(group, config.roc, generator(0, 0, "p")) for group in groups]
    return update_batches(groups, selections, config), selections


def test_a_batch_with_every_group_rejected_is_empty():
    made, selections = batches([[1, 1, 1, 1], [0, 0, 0, 0], [0.0, 1e-9, 0.0, 0.0]])
    assert made == []
    assert selections == [Rejection.SOLVE_ALL, Rejection.SOLVE_NONE, Rejection.SOLVE_NONE]


def test_one_surviving_group_is_all_of_the_mean():
    alone, _ = batches([[1, 0, 0, 1]], updates_per_batch=3)
    among_rejected, _ = batches([[0, 0, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]], updates_per_batch=3)
    assert len(alone) == len(among_rejected) == 1
    for a, b in zip(alone[0], among_rejected[0], strict=True):
        assert np.array_equal(a.ids, b.ids) and (a.weight, a.advantage) == (b.weight, b.advantage)
    assert sum(s.weight * s.mask.sum() for s in alone[0]) == pytest.approx(1)
    assert sum(s.advantage for s in alone[0]) == pytest.approx(0)
    sample = alone[0][0]
    assert (
        sample.ids[:2].tolist() == [7, 8]
        and sample.mask.tolist()[:3] == [0, 0, 1]
        and sample.mask[-1] == 0
    )


def test_updates_share_the_groups():
    made, _ = batches([[1, 0, 0, 1]] * 5, updates_per_batch=2)
    assert [len(batch) for batch in made] == [6, 4]
    for batch in made:
        assert sum(s.weight * s.mask.sum() for s in batch) == pytest.approx(1)


def test_token_weights():
    assert token_weights([10, 30], [0, 1], "batch") == [1 / 40, 1 / 40]
    assert token_weights([10, 30], [0, 1], "group") == [1 / 20, 1 / 60]
    lengths = [3, 4, 5]
    weights = token_weights(lengths, [0, 0, 1], "group")
    assert sum(w * n for w, n in zip(weights, lengths, strict=True)) == pytest.approx(1)
