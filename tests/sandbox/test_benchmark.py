"""The benchmark's own parts: a wrong figure there misleads more than none."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.sandboxes import sizing
from benchmarks.sandboxes.cgroups import tree_cpu_s
from benchmarks.sandboxes.drive import Sample, closed_loop, open_loop
from benchmarks.sandboxes.plain import Plain
from benchmarks.sandboxes.programs import (
    MAKERS,
    MIX_FLOOR_CPU_S,
    MIXES,
    Answer,
    Ending,
    Verdict,
    programs,
)


def take(workload: str, count: int) -> list:
    return list(itertools.islice(programs(workload), count))


@pytest.mark.parametrize("mix", ["mix", "mix_no_loop", "soak"])
def test_each_block_of_a_mix_has_every_kind_s_exact_share(mix: str) -> None:
    block = sum(MIXES[mix].values())
    for start in (0, block):
        kinds = Counter(program.kind for program in take(mix, 2 * block)[start : start + block])
        assert kinds == MIXES[mix]


def test_what_the_programs_of_the_mix_burn_themselves() -> None:
    assert pytest.approx(0.0175) == MIX_FLOOR_CPU_S


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind not in ("syntax", "infinite")])
def test_another_call_s_answer_is_wrong(kind: str) -> None:
    first, second = take(kind, 2)
    assert first.judge(Answer(Ending.OK, first.stdout + "\n")) is Verdict.RIGHT
    assert first.judge(Answer(Ending.OK, second.stdout + "\n")) is Verdict.WRONG


def test_only_the_infinite_loop_earns_a_time_out() -> None:
    verdicts = {kind: take(kind, 1)[0].judge(Answer(Ending.TIMEOUT)) for kind in MAKERS}
    assert verdicts.pop("infinite") is Verdict.RIGHT
    assert set(verdicts.values()) == {Verdict.FALSE_TIMEOUT}
    assert take("infinite", 1)[0].judge(Answer(Ending.ERROR)) is Verdict.WRONG


def test_no_answer_is_lost_not_wrong() -> None:
    assert take("print", 1)[0].judge(Answer(Ending.FAILED)) is Verdict.LOST


def test_sizing_of_45_thousand_calls() -> None:
    cores = dict(sizing.table(16.7))
    assert cores["spread over 1 min"] == pytest.approx(17.9, abs=0.1)
    assert cores["all at once, mean latency 0.3 s"] == pytest.approx(1252, abs=1)


def test_samples_of_rounds_add_up() -> None:
    total = Sample()
    for calls, elapsed_s in ((10, 1.0), (20, 4.0)):
        latencies = [elapsed_s] * calls
        total.add(Sample(calls, 0, elapsed_s, 0.3, 0.0, latencies, Counter({Verdict.RIGHT: calls})))
    assert (total.rate, total.cpu_ms) == (6.0, pytest.approx(20.0))
    assert (total.quantile_s(0.5), total.quantile_s(0.01), total.bad) == (4.0, 1.0, 0)


async def test_plain_subprocesses_answer_every_kind_rightly_and_leave_nothing() -> None:
    plain = Plain(Path(sys.executable), at_once=3, shares=1024)
    try:
        await plain.start()
        pids = plain._children.pids
        for kind in MAKERS:
            # However busy the machine: only the infinite loop is to reach its limit.
            plain.limit_s = 0.5 if kind == "infinite" else 60.0
            sample = await closed_loop(plain, programs(kind), 2, calls=2)
            assert sample.verdicts == {Verdict.RIGHT: 2}, kind
        assert plain.cpu_s() > 0
        arrived = await open_loop(plain, programs("print"), rate=20, window_s=0.5, seed=1)
        assert arrived.calls == len(arrived.latencies_s) > 0
        # More than the window has room for: what is given up is in no figure, and the next call is right.
        cut = await closed_loop(plain, programs("infinite"), 200, window_s=0.2)
        assert (cut.calls, cut.given_up) == (0, 200)
        plain.width = 8  # wider than the calls that may be outstanding
        after = await closed_loop(plain, programs("print"), 4, calls=9)
        assert after.verdicts == {Verdict.RIGHT: 9}
    finally:
        await plain.stop()
    await asyncio.sleep(0)
    assert all(tree_cpu_s(pid) == 0 for pid in pids)
