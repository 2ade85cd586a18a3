from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.packing import FILL_TOKENS, plan

lengths_st = st.lists(st.integers(2, 300), min_size=1, max_size=80)


def quadratic(tokens: int) -> float:
    return tokens + tokens**2 / 100


@given(lengths_st, st.integers(1, 4), st.integers(1, 2000), st.booleans())
def test_every_index_once_equal_counts_and_budget_kept(lengths, ranks, budget, packed):
    micros = plan(lengths, ranks, budget, packed, quadratic).micro_batches
    assert sorted(i for rank in micros for micro in rank for i in micro) == list(
        range(len(lengths))
    )
    assert len({len(rank) for rank in micros}) == 1
    assert any(rank[-1] for rank in micros)  # no place is empty on all ranks
    for rank in micros:
        for micro in rank:
            rows = [lengths[i] for i in micro]
            assert (sum(rows) if packed else len(rows) * max(rows, default=0)) <= budget or len(
                micro
            ) == 1


@given(lengths_st, st.integers(1, 4), st.integers(1, 2000), st.booleans())
def test_shares_are_what_the_arithmetic_says(lengths, ranks, budget, packed):
    result = plan(lengths, ranks, budget, packed, quadratic)
    tokens, costs = 0, np.zeros((ranks, len(result.micro_batches[0])))
    for rank, micros in enumerate(result.micro_batches):
        for place, micro in enumerate(micros):
            rows = [lengths[i] for i in micro]
            if not packed:
                rows = [max(rows, default=0)] * len(rows)
            tokens += sum(rows) or FILL_TOKENS
            costs[rank, place] = sum(map(quadratic, rows))
    assert result.padding_share == pytest.approx(1 - sum(lengths) / tokens)
    assert result.idle_share == pytest.approx(1 - costs.mean(0).sum() / costs.max(0).sum())


def test_ranks_cost_the_same_where_attention_is_dear():
    lengths = [12_000] * 8 + [500] * 400
    assert plan(lengths, 4, 16_000, True, quadratic).idle_share < 0.05
    assert plan(lengths, 4, 16_000, True, float).idle_share < 0.05


def test_sorted_rectangles_pad_less_than_one_whole():
    lengths = list(range(1, 200))
    assert plan(lengths, 1, 1000, False).padding_share < 0.15
    assert plan(lengths, 1, 10**6, False).padding_share == pytest.approx(1 - sum(lengths) / 199**2)


def test_fewer_sequences_than_ranks():
    for packed in (True, False):
        assert plan([5], 3, 100, packed).micro_batches == [[[0]], [[]], [[]]]
