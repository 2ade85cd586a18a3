"""What the figures are measured against."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.sandboxes.columns import CORES
from benchmarks.sandboxes.drive import Sample
from benchmarks.sandboxes.programs import LIMIT_S, MIX_FLOOR_CPU_S, Verdict
from benchmarks.sandboxes.report import Cells, Goal

OURS, SINGLE = "ours /batch", "ours /run"
AT = 32  # concurrent calls, where the ways are compared
SUMMARY = (
    "ratio (print) >= 6, sympy >= 15, mix_no_loop by CPU-ms >= 5; print alone: p50 <= 5 ms, at 32: <= 2.5 CPU-ms; "
    "mean <= 0.3 s at 70 % of capacity; no false time-out of 10,000; soak: none lost, none wrong, no growth"
)


def ratios(cells: Cells, peer: str) -> dict[str, float]:
    """Ours (/batch of 32) against `peer`, both with 32 calls outstanding: by calls/s, the mix by CPU-ms a call."""
    values = {
        workload: _over(cells, workload, peer, lambda ours, theirs: ours.rate / theirs.rate)
        for workload in ("print", "numpy", "sympy")
    }
    values["mix_no_loop"] = _over(
        cells, "mix_no_loop", peer, lambda ours, theirs: theirs.cpu_ms / ours.cpu_ms
    )
    return values


def of_comparison(cells: Cells, peer: str) -> list[Goal]:
    seen = ratios(cells, peer)
    text = f"times {peer}, /batch of 32, 32 concurrent"
    return [
        Goal(f"print, calls/s {text}", 6, seen["print"]),
        Goal(f"sympy, calls/s {text}", 15, seen["sympy"]),
        Goal(f"mix_no_loop, CPU-ms a call, {text}", 5, seen["mix_no_loop"]),
        Goal(
            "print alone by /run, p50 in ms",
            5,
            1000 * _get(cells, "print", 1, SINGLE).quantile_s(0.5),
            False,
        ),
        Goal(
            "print by /batch, CPU-ms a call, container + gateway",
            2.5,
            _get(cells, "print", AT, OURS).cpu_ms,
            False,
        ),
    ]


def of_open_loop(sample: Sample) -> Goal:
    return Goal("arrivals at 70 % of capacity: mean latency in s", 0.3, sample.mean_s, False)


def of_full_load(sample: Sample) -> Goal:
    text = f"false time-outs of {sample.calls:,} calls of the mix, 1,000 outstanding"
    return Goal(text, 0, sample.verdicts[Verdict.FALSE_TIMEOUT], False)


def ceiling_lines(cells: Cells, peer: str) -> list[str]:
    """The whole mix beside what no sandbox can beat: the CPU that its programs burn themselves."""
    ceiling = CORES / MIX_FLOOR_CPU_S
    ours, theirs = _get(cells, "mix", AT, OURS), _get(cells, "mix", AT, peer)
    if not ours.calls:
        return []
    lines = [
        f"\nmix with its infinite loop ({LIMIT_S:g} s limit): its programs burn {1000 * MIX_FLOOR_CPU_S:.1f} CPU-ms a "
        f"call themselves, so {CORES} cores give {ceiling:.0f} calls/s at most, whatever the sandbox",
        f"  ours {ours.rate:.1f}/s, {100 * ours.rate / ceiling:.0f} % of that",
    ]
    if theirs.calls:
        lines.append(
            f"  {peer} {theirs.rate:.1f}/s; ours is {ours.rate / theirs.rate:.2f} times that, "
            f"{ceiling / theirs.rate:.2f} times is the ceiling"
        )
    return lines


def figures(cells: Cells, peer: str) -> dict[str, Any]:
    """`ratio` and `ratios`, and how they were made."""
    values = {
        name: None if math.isnan(value) else round(value, 2)
        for name, value in ratios(cells, peer).items()
    }
    basis = (
        f"32 concurrent, ours by /batch of 32 against {peer}: calls/s; mix_no_loop: CPU-ms a call"
    )
    return {"ratio": values["print"], "ratios": values, "ratios_basis": basis}


def _over(cells: Cells, workload: str, peer: str, compare: Any) -> float:
    ours, theirs = _get(cells, workload, AT, OURS), _get(cells, workload, AT, peer)
    return float(compare(ours, theirs)) if ours.calls and theirs.calls else math.nan


def _get(cells: Cells, workload: str, concurrency: int, name: str) -> Sample:
    return cells.get((workload, concurrency, name), Sample())
