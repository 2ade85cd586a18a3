"""What one run of the benchmark does, and for how long; sized for 2 cores."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("print", "numpy", "sympy", "mix_no_loop", "mix")
PARTS = ("compare", "open", "full", "soak")


@dataclass(frozen=True)
class Cell:
    """One concurrency: each workload, each backend, `rounds` times in turn."""

    concurrency: int
    workloads: tuple[str, ...]
    rounds: int
    window_s: float


@dataclass(frozen=True)
class Plan:
    cells: tuple[Cell, ...]
    open_s: float
    full_calls: int  # of the mix at full load, where no time-out may be false
    soak_calls: int


FULL = Plan(
    cells=(
        Cell(1, KINDS[:4], rounds=2, window_s=2.0),
        Cell(32, KINDS, rounds=3, window_s=3.0),
        Cell(1000, ("print", "numpy", "sympy", "mix"), rounds=1, window_s=6.0),
    ),
    open_s=30.0,
    full_calls=10_000,
    soak_calls=45_000,
)
QUICK = Plan(
    cells=(
        Cell(1, ("print", "mix_no_loop"), rounds=1, window_s=1.0),
        Cell(32, KINDS, rounds=1, window_s=1.5),
        Cell(1000, ("print", "mix"), rounds=1, window_s=2.0),
    ),
    open_s=8.0,
    full_calls=500,
    soak_calls=4_500,
)
