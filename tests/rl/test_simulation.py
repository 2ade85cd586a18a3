"""The cluster simulation: what can be said exactly about it, and the real scheduler in it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placements import Capped, Static
from benchmarks.simulation import TOOL_S, TOOL_TOKENS, Hardware, Simulation, Work, lower_bound_s
from rl.config import SchedulerConfig
from rl.scheduler import Scheduler

HARDWARE = Hardware("small", 4000, 1e-2, 1e-6, 1e-4, 1e-4)


def test_one_rollout_alone_takes_exactly_its_steps_prefill_and_tool_time():
    work = [Work(0, 100, (50, 30))]
    outcome = Simulation(HARDWARE, 1, work, Static(lambda _: 0)).run()
    contexts = [100 + i for i in range(1, 51)] + [150 + TOOL_TOKENS + i for i in range(1, 31)]
    decode = sum(1e-2 + 1e-4 + 1e-6 * context for context in contexts)
    assert outcome.makespan_s == pytest.approx(decode + (100 + TOOL_TOKENS) * 1e-4 + TOOL_S)
    assert (outcome.preemptions, outcome.recomputed_tokens) == (0, 0)
    assert outcome.prefill_tokens == 100 + TOOL_TOKENS


def test_a_cache_for_one_preempts_and_computes_again():
    work = [Work(i, 1000, (1500,)) for i in range(2)]
    outcome = Simulation(HARDWARE, 1, work, Static(lambda _: 0)).run()
    assert outcome.preemptions == 1
    # the first one's growth evicts most of what the second had when it was preempted, at 1,999 tokens
    assert outcome.prefill_tokens == 2000 + outcome.recomputed_tokens
    assert 0 < outcome.recomputed_tokens <= 2001
    capped = Simulation(HARDWARE, 1, work, Capped(1, 1)).run()
    assert (capped.preemptions, capped.prefill_tokens) == (0, 2000)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=4), min_size=1, max_size=60),
    st.integers(1, 3),
)
def test_every_policy_ends_everything_and_none_beats_the_lower_bound(turns, engines):
    work = [Work(i // 4, 50, tuple(t)) for i, t in enumerate(turns)]
    policies = [
        Static(lambda i: i % engines),
        Capped(engines, 2),
        Scheduler([HARDWARE.kv_tokens] * engines, 2000, SchedulerConfig()),
        Scheduler(
            [HARDWARE.kv_tokens] * engines, 2000, SchedulerConfig(off_below=0.0, saturation=0)
        ),
    ]
    for policy in policies:
        outcome = Simulation(HARDWARE, engines, work, policy).run()
        assert outcome.makespan_s >= lower_bound_s(HARDWARE, engines, work) - 1e-9
        assert outcome.generated_tokens == sum(map(sum, turns))
        assert outcome.kv_mean <= 1 and -1e-9 <= outcome.idle_share < 1
