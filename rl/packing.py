"""Token-budget micro-batches: which sequences go through the model together, on which rank.

A packed micro-batch is one row of whole sequences, end to end, and computes no padding at all; a padded
one is a rectangle of sequences of about the same length. Every rank gets the same number of micro-batches,
filled up with empty ones, because FSDP's collectives hang when ranks run different numbers of forward
passes. Ranks walk through them in lockstep, so those at one place cost about the same on every rank.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Cost = Callable[[int], float]  # of a sequence of that many tokens, in any unit
FILL_TOKENS = 2  # what an empty micro-batch computes; see rl.batch.collate
GROWTH = 1.02  # micro-batches tried next, where the sequences did not fit into so few


@dataclass(frozen=True)
class Plan:
    """Micro-batches as [rank][place][index]. Shares are of what all ranks compute."""

    micro_batches: list[list[list[int]]]
    padding_share: float  # of the tokens
    idle_share: float  # of the cost: what ranks wait for the slowest at each place


def plan(
    lengths: Sequence[int], ranks: int, budget_tokens: int, packed: bool, cost: Cost = float
) -> Plan:
    """Every index once; a micro-batch computes at most `budget_tokens`, a longer sequence goes alone."""
    if packed:
        micros = _packed(lengths, ranks, budget_tokens, cost)
    else:
        micros = _padded(lengths, ranks, budget_tokens)

    def computed(micro: list[int]) -> tuple[float, int]:
        if not micro:
            return 0.0, FILL_TOKENS
        if packed:
            return sum(cost(lengths[i]) for i in micro), sum(lengths[i] for i in micro)
        longest = max(lengths[i] for i in micro)
        return len(micro) * cost(longest), len(micro) * longest

    costs, tokens = zip(*map(computed, micros), strict=True)
    order = sorted(range(len(micros)), key=lambda m: -costs[m])
    places = [order[start : start + ranks] for start in range(0, len(order), ranks)]
    slowest = sum(costs[place[0]] for place in places)
    return Plan(
        micro_batches=[[micros[place[rank]] for place in places] for rank in range(ranks)],
        padding_share=1 - sum(lengths) / sum(tokens),
        idle_share=max(0.0, 1 - sum(costs) / (ranks * slowest)),
    )


def _packed(lengths: Sequence[int], ranks: int, budget: int, cost: Cost) -> list[list[int]]:
    """Rows of about equal cost: the costliest sequence first, each into the cheapest row that has room."""
    costs = [cost(length) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda i: (-costs[i], i))
    most = math.ceil(len(lengths) / ranks)  # where every sequence is alone
    places = min(most, math.ceil(sum(lengths) / (budget * ranks)))
    while (rows := _spread(order, lengths, costs, places * ranks, budget)) is None:
        places = min(most, max(places + 1, int(places * GROWTH)))
    return rows


def _spread(
    order: list[int], lengths: Sequence[int], costs: list[float], count: int, budget: int
) -> list[list[int]] | None:
    """`count` rows within the budget, or None if this order does not fit into so few."""
    rows: list[list[int]] = [[] for _ in range(count)]
    heap = [(0.0, row, 0) for row in range(count)]  # (cost, row, tokens)
    for i in order:
        full = []
        while heap and heap[0][2] and heap[0][2] + lengths[i] > budget:
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        load, row, tokens = heap[0]
        heapq.heapreplace(heap, (load + costs[i], row, tokens + lengths[i]))
        rows[row].append(i)
        for entry in full:
            heapq.heappush(heap, entry)
    return rows


def _padded(lengths: Sequence[int], ranks: int, budget: int) -> list[list[int]]:
    """Rectangles of sorted sequences, as small as their number allows: a multiple of `ranks`."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    wanted = math.ceil(len(_cut(order, lengths, budget)) / ranks) * ranks
    too_small, enough = 0, budget
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if len(_cut(order, lengths, middle)) <= wanted:
            enough = middle
        else:
            too_small = middle
    micros = _cut(order, lengths, enough)
    return micros + [[] for _ in range(wanted - len(micros))]


def _cut(order: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows * longest <= budget; a longer sequence goes alone."""
    micros: list[list[int]] = []
    longest = 0
    for i in order:
        if micros and (len(micros[-1]) + 1) * longest <= budget:
            micros[-1].append(i)
        else:
            micros.append([i])
            longest = lengths[i]
    return micros
