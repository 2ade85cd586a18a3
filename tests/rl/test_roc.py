from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.config import RocConfig
from rl.roc import (
    Rejection,
    Selection,
    advantages,
    generator,
    p_err,
    p_format,
    penalty,
    quotas,
    select,
)
from rl.trajectory import Rollout, StopReason, ToolCall

CLEAN = "<reason>r</reason><answer>\\boxed{1}</answer>"


def rollout(
    reward: float, failed: int = 0, calls: int = 1, text: str = CLEAN, stop: str = "answered"
) -> Rollout:
    made = [ToolCall("error" if i < failed else "ok", i < failed) for i in range(calls)]
    return Rollout("p", [1], turn_texts=[text], calls=made, stop=StopReason(stop), reward=reward)


groups = st.lists(
    st.builds(
        rollout,
        st.sampled_from([0.0, 1.0]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([CLEAN, "no tags", "<answer>", CLEAN + CLEAN]),
        st.sampled_from(["answered", "length", "error"]),
    ),
    min_size=2,
    max_size=40,
)


@given(groups, st.integers(2, 20), st.sampled_from(["roc", "top"]), st.integers(0, 5))
def test_selection_keeps_exactly_g_with_both_classes(group, kept, selection, seed):
    config = RocConfig(rollouts=max(kept, len(group)), kept=kept, selection=selection)
    result = select(group, config, generator(seed, 0, "p"))
    usable = [r for r in group if r.stop is not StopReason.ERROR]
    rewards = {r.reward for r in usable}
    if len(usable) < kept:
        assert result is Rejection.SHORT
    elif rewards == {1.0}:
        assert result is Rejection.SOLVE_ALL
    elif rewards == {0.0}:
        assert result is Rejection.SOLVE_NONE
    else:
        assert isinstance(result, Selection)
        assert len(set(result.kept)) == len(result.kept) == kept
        assert all(group[i].stop is not StopReason.ERROR for i in result.kept)
        assert {group[i].reward for i in result.kept} == {0.0, 1.0}
        assert sum(result.advantages) == pytest.approx(0, abs=1e-6)
        for i, advantage in zip(result.kept, result.advantages, strict=True):
            assert (advantage > 0) == (group[i].reward > 0.5)


@given(groups, st.integers(0, 3), st.integers(0, 3))
def test_selection_is_a_function_of_seed_step_and_problem(group, seed, step):
    config = RocConfig(rollouts=len(group), kept=2)
    first = select(group, config, generator(seed, step, "a"))
    assert select(group, config, generator(seed, step, "a")) == first


def test_generators_differ_by_each_part_of_the_seed():
    keys = [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]
    draws = {tuple(generator(*key).integers(0, 1 << 30, 4)) for key in keys}
    assert len(draws) == 4


@given(st.integers(0, 40), st.integers(0, 40), st.data())
def test_quotas_add_up_and_fit(correct, failed, data):
    if correct + failed == 0:
        return
    keep = data.draw(st.integers(1, correct + failed))
    from_correct, from_failed = quotas(correct, failed, keep)
    assert from_correct + from_failed == keep
    assert 0 <= from_correct <= correct
    assert 0 <= from_failed <= failed


@pytest.mark.parametrize(
    ("correct", "failed", "keep", "expected"),
    [
        (10, 22, 16, (5, 11)),  # both classes halved
        (11, 21, 16, (6, 10)),  # the free slot goes to the rarer class
        (21, 11, 16, (10, 6)),
        (1, 31, 16, (1, 15)),  # a single success is never lost
        (31, 1, 16, (15, 1)),
        (7, 23, 16, (4, 12)),  # 30 of 32 could be served
    ],
)
def test_quotas_by_hand(correct, failed, keep, expected):
    assert quotas(correct, failed, keep) == expected


def test_penalties_by_hand():
    assert p_err(rollout(1, calls=0)) == 0.5
    assert p_err(rollout(1, failed=1, calls=4)) == 0.25
    assert p_format(rollout(1)) == 0
    assert p_format(rollout(1, text="no answer")) == 1
    assert p_format(rollout(1, text="<answer>1")) == 1
    assert p_format(rollout(1, text="<reason>" + CLEAN)) == 1
    assert p_format(rollout(1, text=CLEAN + CLEAN)) == 1  # 2 answers in 1 turn
    two_turns = Rollout(
        "p", [], turn_texts=["<tool_call>x</tool_call>", CLEAN + "<answer>2</answer>"]
    )
    assert p_format(two_turns) == 0.5


def test_clean_correct_rollouts_are_drawn_as_often_as_their_weight_says():
    # one clean (weight 1/0.1), one with all calls failed (weight 1/1.1); one of the two is kept
    group = [rollout(1), rollout(1, failed=1), rollout(0), rollout(0)]
    config = RocConfig(rollouts=4, kept=2)
    picks = [select(group, config, generator(0, step, "p")) for step in range(4000)]
    clean = np.mean([0 in pick.kept for pick in picks if isinstance(pick, Selection)])
    expected = (1 / 0.1) / (1 / 0.1 + 1 / 1.1)
    assert clean == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 4000))


def test_failures_are_drawn_uniformly_whatever_their_quality():
    group = [rollout(0, failed=3, calls=3, text="x"), rollout(0), rollout(1), rollout(1)]
    config = RocConfig(rollouts=4, kept=2)
    picks = [select(group, config, generator(0, step, "p")) for step in range(4000)]
    dirty = np.mean([0 in pick.kept for pick in picks if isinstance(pick, Selection)])
    assert dirty == pytest.approx(0.5, abs=4 * math.sqrt(0.25 / 4000))


def test_top_takes_the_lowest_penalties():
    group = [
        rollout(1, failed=2, calls=2),
        rollout(1, failed=1, calls=2),
        rollout(1),
        rollout(1, calls=0),
    ]
    group += [rollout(0) for _ in range(4)]
    result = select(group, RocConfig(rollouts=8, kept=4, selection="top"), generator(0, 0, "p"))
    assert isinstance(result, Selection)
    kept = sorted(penalty(group[i]) for i in result.kept if group[i].reward)
    assert kept == sorted(penalty(r) for r in group if r.reward)[:2]


def test_rewards_that_differ_by_float_noise_are_equal():
    group = [rollout(1.0), rollout(1.0 - 1e-9)] * 2
    assert select(group, RocConfig(rollouts=4, kept=2), generator(0, 0, "p")) is Rejection.SOLVE_ALL


def test_advantages_by_hand():
    assert advantages([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)


def test_all_keeps_everything():
    group = [rollout(1), rollout(0), rollout(0)]
    result = select(group, RocConfig(rollouts=3, kept=3, selection="all"), generator(0, 0, "p"))
    assert isinstance(result, Selection) and result.kept == [0, 1, 2]


def test_all_with_fewer_kept_is_refused():
    with pytest.raises(ValueError, match="kept"):
        RocConfig(rollouts=4, kept=2, selection="all")
