"""The scheduler alone: a pure state machine, driven by random sequences of events."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.config import SchedulerConfig
from rl.lengths import Lengths
from rl.scheduler import ENOUGH_LENGTHS, Scheduler

ON = SchedulerConfig(off_below=0.0, saturation=0)
OFF = SchedulerConfig(off_below=1e9)


def scheduler(kv_tokens, config, response_tokens=100, jitter=0):
    """One whose last step had responses of `response_tokens` on average."""
    made = Scheduler(kv_tokens, 1000, config)
    for i in range(ENOUGH_LENGTHS):
        made.submit(-1 - i, 0, 10)
        made.finish(-1 - i, response_tokens + (jitter if i % 2 else -jitter))
    made.end_step()
    return made


@settings(max_examples=60, deadline=None)
@given(
    kv_tokens=st.lists(st.integers(50, 2000), min_size=1, max_size=5),
    groups=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    overbook=st.floats(0.5, 2.0),
    off_below=st.sampled_from([0.0, 0.9, 1e9]),
    data=st.data(),
)
def test_every_rollout_ends_whatever_happens(kv_tokens, groups, overbook, off_below, data):
    """Random progress, readings, losses and ends; what the module promises is checked after each event."""
    config = SchedulerConfig(overbook=overbook, off_below=off_below, saturation=0)
    made = scheduler(kv_tokens, config)
    prompts: dict[int, int] = {}
    for group, size in enumerate(groups):
        for _ in range(size):
            prompts[len(prompts)] = data.draw(st.integers(1, 60))
            made.submit(len(prompts) - 1, group, prompts[len(prompts) - 1])
    open_rollouts, places, losses = set(prompts), Counter(), Counter()
    contexts: dict[int, int] = {}
    dead: set[int] = set()

    def place():
        for rollout, engine in made.ready():
            alone = Counter(made.placed.values())[engine] == 1
            places[rollout] += 1
            assert rollout in open_rollouts and engine not in dead
            assert places[rollout] == losses[rollout] + 1
            assert made.placed[rollout] == engine
            if alone or not made.gated:
                continue
            # the last one placed on an engine saw the whole ledger
            rest = [r for r, where in made.placed.items() if where == engine]
            expected = sum(max(prompts[r] + 100, contexts.get(r, 0)) for r in rest)
            assert made.expected_tokens[engine] == expected
            if len(rest) > 1:
                assert expected <= overbook * kv_tokens[engine]

    def check_ledger():
        on_engine = Counter(made.placed.values())
        for engine, expected in enumerate(made.expected_tokens):
            assert expected >= 0 and (expected > 0) == (on_engine[engine] > 0)
        living = set(range(len(kv_tokens))) - dead
        if living and open_rollouts:
            assert made.placed, "rollouts are open, engines live, and nothing runs"
        if not made.gated and living:
            assert len(made.placed) == len(open_rollouts)

    place()
    check_ledger()
    while open_rollouts:
        event = data.draw(
            st.sampled_from(
                ["finish", "finish", "finish", "progress", "observe", "lose", "restore"]
            )
        )
        placed = sorted(made.placed)
        if event == "finish":
            # one that still waits may end as well: its deadline passed
            rollout = data.draw(st.sampled_from(placed or sorted(open_rollouts)))
            made.finish(rollout, data.draw(st.integers(1, 300)))
            open_rollouts.remove(rollout)
        elif event == "progress" and placed:
            rollout = data.draw(st.sampled_from(placed))
            contexts[rollout] = prompts[rollout] + data.draw(st.integers(0, 90))
            made.progress(rollout, contexts[rollout])
        elif event == "observe":
            engine = data.draw(st.integers(0, len(kv_tokens) - 1))
            used, running, waiting = (
                data.draw(st.integers(0, most)) for most in (kv_tokens[engine], 9, 2)
            )
            made.observe(engine, used, running, waiting)
        elif event == "lose":
            engine = data.draw(st.sampled_from(range(len(kv_tokens))))
            was_there = {r for r, where in made.placed.items() if where == engine}
            lost = made.lose(engine)
            assert set(lost) == was_there
            losses.update(lost)
            dead.add(engine)
        elif dead:
            engine = data.draw(st.sampled_from(sorted(dead)))
            made.restore(engine)
            dead.remove(engine)
        place()
        check_ledger()
    assert made.placed == {} and made.queued == 0
    assert made.expected_tokens == [0] * len(kv_tokens)


@given(st.integers(1, 9), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_without_a_gate_all_start_at_once_balanced_and_groups_spread(engines, groups):
    made = scheduler([1000] * engines, OFF)
    where = fill(made, groups)
    assert len(where) == sum(groups) and made.queued == 0
    loads = Counter(engine for engine, _ in where.values())
    assert max(loads.values()) - min(loads[e] for e in range(engines)) <= 1
    for group, size in enumerate(groups):
        spread = Counter(engine for engine, g in where.values() if g == group)
        assert max(spread.values()) <= -(-size // engines)


@given(st.integers(2, 8), st.integers(1, 6), st.integers(1, 8))
def test_with_a_gate_groups_are_spread_and_engines_alike(engines, groups, holds):
    made = scheduler([110 * holds] * engines, ON.model_copy(update={"overbook": 1.0}))
    where = fill(made, [engines] * groups * holds)
    assert Counter(engine for engine, _ in where.values()) == dict.fromkeys(range(engines), holds)
    assert set(Counter(where.values()).values()) == {1}  # no two of a group on one engine


def fill(made, groups):
    """Submit groups of these sizes; rollout -> (engine, group) of those that start."""
    group_of = [group for group, size in enumerate(groups) for _ in range(size)]
    for rollout, group in enumerate(group_of):
        made.submit(rollout, group, 10)
    return {rollout: (engine, group_of[rollout]) for rollout, engine in made.ready()}


def test_the_same_events_give_the_same_placements():
    runs = [fill(scheduler([700, 900, 800], ON), [7] * 9) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_rollout_too_big_for_every_engine_runs_alone():
    made = scheduler([50], ON)
    for rollout in range(2):
        made.submit(rollout, 0, 10)
    assert made.ready() == [(0, 0)]
    assert made.ready() == []
    made.finish(0, 100)
    assert made.ready() == [(1, 0)]


def test_a_context_beyond_the_estimate_holds_others_back():
    made = scheduler([300], ON.model_copy(update={"overbook": 1.0}))
    for rollout in range(4):
        made.submit(rollout, 0, 10)
    assert made.ready() == [(0, 0), (1, 0)]
    made.progress(0, 250)
    made.finish(1, 50)
    assert made.ready() == []  # 250 are held, 110 would come
    made.finish(0, 260)
    assert made.ready() == [(2, 0), (3, 0)]


def test_what_the_engine_reports_counts_where_it_is_more():
    made = scheduler([330], ON.model_copy(update={"overbook": 1.0}))
    for rollout in range(4):
        made.submit(rollout, 0, 10)
    assert made.ready() == [(0, 0), (1, 0), (2, 0)]
    # the other two are on their way, or in a tool call
    made.observe(0, kv_used_tokens=200, running=1, waiting=0)
    made.finish(2, 100)
    assert made.ready() == []  # 200 + 110 expected for the unseen one, + 110
    made.observe(0, kv_used_tokens=200, running=2, waiting=1)
    assert made.ready() == []  # it was preempted: there is no room for more
    made.observe(0, kv_used_tokens=200, running=2, waiting=0)
    assert made.ready() == [(3, 0)]


def test_a_lost_engine_is_avoided_until_it_is_back_and_its_rollouts_go_first():
    made = scheduler([1000, 1000], ON.model_copy(update={"overbook": 0.5}))
    for rollout in range(12):
        made.submit(rollout, rollout // 4, 10)
    before = dict(made.ready())
    lost = made.lose(1)
    assert lost == sorted(r for r, engine in before.items() if engine == 1)
    assert made.ready() == []
    made.restore(1)
    assert [rollout for rollout, _ in made.ready()] == lost


def test_the_gate_follows_the_predicted_peak():
    # all of the same length: the peak is everything at its end
    for rollouts, gated in ((8, False), (9, True)):
        made = scheduler([1000], SchedulerConfig(saturation=0))
        for rollout in range(rollouts):
            made.submit(rollout, 0, 10)
        assert made.peak == pytest.approx(rollouts * 110 / 1000)
        made.ready()
        assert made.gated is gated
    # a lost engine doubles the peak
    made = scheduler([1000, 1000], SchedulerConfig(saturation=0, overbook=0.5))
    for rollout in range(10):
        made.submit(rollout, 0, 10)
    assert len(made.ready()) == 10 and not made.gated
    made.lose(0)
    assert made.ready() == [] and made.gated and made.queued == 5
    # the gate stays for this step, because what runs is deep by now
    made.restore(0)
    assert len(made.ready()) == 4 and made.gated
    for rollout in range(10):
        made.finish(rollout, 100)
    made.submit(10, 0, 10)
    assert made.ready() == [(10, 0)] and not made.gated


def test_a_cache_that_holds_few_rollouts_needs_a_higher_peak():
    made = scheduler([1100], SchedulerConfig(saturation=10))  # holds 10
    for rollout in range(17):
        made.submit(rollout, 0, 10)
    assert made.off_peak == pytest.approx(0.9 * 2)
    assert len(made.ready()) == 17
    made = scheduler([1100], SchedulerConfig(saturation=12, overbook=1.2))
    for rollout in range(40):
        made.submit(rollout, 0, 10)
    assert len(made.ready()) == 12 + 12 // 3


def test_lengths_of_a_step_are_the_estimate_of_the_next():
    made = Scheduler([1000], 400, SchedulerConfig(prior=0.25))
    assert made.lengths.mean == pytest.approx(100, rel=0.01)
    for rollout in range(ENOUGH_LENGTHS - 1):
        made.submit(rollout, 0, 10)
        made.finish(rollout, 70)
    made.submit(99, 0, 10)
    made.finish(99)  # a fault says nothing about lengths
    made.end_step()
    assert made.lengths.mean == pytest.approx(100, rel=0.01)  # too few to say
    made.submit(99, 0, 10)
    made.finish(99, 70)
    made.end_step()
    assert made.lengths == Lengths.of([70] * ENOUGH_LENGTHS)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(0, 100))
def test_the_lockstep_peak_is_what_a_replay_shows(tokens, prompt):
    held = [sum(prompt + t for length in tokens if length >= t) for t in range(1, max(tokens) + 1)]
    assert Lengths.of(tokens).lockstep_peak(prompt) == pytest.approx(max(held) / len(tokens))


def test_submitting_an_open_rollout_again_is_refused():
    made = scheduler([1000], ON)
    made.submit(1, 0, 10)
    with pytest.raises(ValueError, match="rollout 1 was submitted before"):
        made.submit(1, 0, 10)
