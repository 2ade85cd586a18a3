from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rl.packing import micro_batches, padding_share, plan

lengths_st = st.lists(st.integers(1, 300), min_size=1, max_size=80)


@given(lengths_st, st.integers(1, 4), st.integers(1, 2000))
def test_every_index_once_equal_counts_and_budget_kept(lengths, ranks, budget):
    batches = plan(lengths, ranks, budget)
    assert sorted(i for rank in batches for micro in rank for i in micro) == list(range(len(lengths)))
    assert len({len(rank) for rank in batches}) == 1
    for rank in batches:
        for micro in rank:
            padded = len(micro) * max((lengths[i] for i in micro), default=0)
            assert padded <= budget or len(micro) == 1


@given(lengths_st)
def test_padding_is_what_the_arithmetic_says(lengths):
    whole = [list(range(len(lengths)))]
    expected = 1 - sum(lengths) / (len(lengths) * max(lengths))
    assert abs(padding_share(lengths, whole) - expected) < 1e-12


def test_sorting_pads_less_than_one_batch():
    lengths = list(range(1, 200))
    assert padding_share(lengths, micro_batches(lengths, 1000)) < padding_share(lengths, [list(range(199))])
