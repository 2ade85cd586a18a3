"""Token-budget micro-batches: which sequences go through the model together, on which rank.

Sequences are sorted by length and cut into micro-batches whose padded size stays under the budget, so
little is padded. Every rank gets the same number of micro-batches, filled up with empty ones, because
FSDP's collectives hang when ranks run a different number of forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Indices in micro-batches, longest first; rows * longest <= budget (a longer row goes alone)."""
    batches: list[list[int]] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * longest <= budget_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = lengths[i]
    return batches


def plan(lengths: Sequence[int], ranks: int, budget_tokens: int) -> list[list[list[int]]]:
    """[rank][micro-batch][index]: every index once, equal counts a rank, empty micro-batches as fill."""
    loads, shares = [0] * ranks, [[] for _ in range(ranks)]  # type: ignore[var-annotated]
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = loads.index(min(loads))
        loads[rank] += lengths[i]
        shares[rank].append(i)
    plans = [
        [[share[j] for j in batch] for batch in micro_batches([lengths[i] for i in share], budget_tokens)]
        for share in shares
    ]
    count = max(map(len, plans))
    return [batches + [[] for _ in range(count - len(batches))] for batches in plans]


def padding_share(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """Share of the computed tokens that are padding."""
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches if batch)
    return 1 - sum(lengths[i] for batch in batches for i in batch) / padded if padded else 0.0
