from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rl.scheduler import Scheduler


@given(st.integers(1, 5), st.integers(1, 60))
def test_rollouts_are_dealt_evenly_and_stay(engines, n):
    scheduler = Scheduler(engines)
    where = [scheduler.place(i) for i in range(n)]
    assert max(scheduler.load) - min(scheduler.load) <= 1
    assert [scheduler.place(i) for i in range(n)] == where
    for i in range(n):
        scheduler.finish(i)
    assert scheduler.load == [0] * engines


def test_a_lost_engine_gives_its_rollouts_back():
    scheduler = Scheduler(2)
    where = {i: scheduler.place(i) for i in range(10)}
    assert scheduler.lose(1) == [i for i in where if where[i] == 1]
    assert scheduler.load == [5, 0]
