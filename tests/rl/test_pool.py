from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.pool import Pool
from rl.trajectory import Problem

PROBLEMS = [Problem(str(i), f"problem {i}", str(i)) for i in range(7)]


@given(
    st.integers(0, 100),
    st.lists(st.integers(1, 9), max_size=8),
    st.lists(st.integers(1, 9), max_size=8),
)
def test_a_resumed_pool_goes_on_where_it_was(seed, before, after):
    whole, first = Pool(PROBLEMS, seed), Pool(PROBLEMS, seed)
    for n in before:
        first.take(n)
    resumed = Pool(PROBLEMS, seed, first.cursor)
    expected = whole.take(sum(before) + sum(after))[sum(before) :]
    assert [p for n in after for p in resumed.take(n)] == expected


def test_every_problem_once_an_epoch_and_epochs_differ():
    pool = Pool(PROBLEMS, 0)
    epochs = [tuple(pool.take(7)) for _ in range(4)]
    assert all(set(epoch) == set(PROBLEMS) for epoch in epochs)
    assert len(set(epochs)) > 1


def test_an_empty_pool_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        Pool([], 0)
