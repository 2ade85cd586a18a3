"""Tables and goals of the sandbox benchmark."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.sandboxes.drive import Sample
from benchmarks.sandboxes.programs import Verdict

Cells = dict[tuple[str, int, str], Sample]  # workload, concurrency, backend


@dataclass(frozen=True)
class Goal:
    text: str
    wanted: float
    got: float
    at_least: bool = True

    @property
    def held(self) -> bool:
        return self.got >= self.wanted if self.at_least else self.got <= self.wanted

    def line(self) -> str:
        if math.isnan(self.got):
            return f"  not measured  {self.text}"
        relation = ">=" if self.at_least else "<="
        came = "held" if self.held else "MISSED"
        return f"  {came:12}  {self.text}: {self.got:.2f} (goal {relation} {self.wanted:g})"

    def record(self) -> dict[str, Any]:
        got = None if math.isnan(self.got) else round(self.got, 3)
        return {
            "goal": self.text,
            "wanted": self.wanted,
            "got": got,
            "held": got is not None and self.held,
        }


def print_tables(cells: Cells, backends: list[str]) -> None:
    """One table a concurrency, a row a workload, a column a backend."""
    width = 44
    for concurrency in sorted({key[1] for key in cells}):
        print(f"\n{concurrency} concurrent: calls/s, p50/p99 ms, CPU-ms a call, bad answers")
        print(f"{'':13}" + "".join(f"{name:<{width}}" for name in backends))
        for workload in dict.fromkeys(key[0] for key in cells if key[1] == concurrency):
            texts = [_cell(cells.get((workload, concurrency, name))) for name in backends]
            print(f"{workload:13}" + "".join(f"{text:<{width}}" for text in texts))
    if any(sample.given_up for sample in cells.values()):
        print(
            ">: the window closed on calls that still waited, so their latencies are longer than shown"
        )


def _cell(sample: Sample | None) -> str:
    if sample is None or not sample.calls:
        return "-"
    more = ">" if sample.given_up else ""
    text = f"{sample.rate:.1f}/s {more}{1000 * sample.quantile_s(0.5):.1f}/{1000 * sample.quantile_s(0.99):.0f} "
    return text + f"{sample.cpu_ms:.2f} " + (describe(sample) or "0")


def sentence(sample: Sample) -> str:
    return (
        f"{sample.calls:,} calls, {sample.rate:.1f}/s, mean {sample.mean_s:.3f} s, p50 {sample.quantile_s(0.5):.3f} s, "
        f"p99 {sample.quantile_s(0.99):.3f} s, {sample.cpu_ms:.2f} CPU-ms a call, bad: {describe(sample) or 'none'}"
    )


def describe(sample: Sample) -> str:
    """The answers that were not right."""
    return " ".join(
        f"{count} {verdict}"
        for verdict, count in sorted(sample.verdicts.items())
        if verdict is not Verdict.RIGHT
    )


def record(sample: Sample) -> dict[str, Any]:
    """A sample for the JSON."""
    return {
        "calls": sample.calls,
        "given_up": sample.given_up,
        "calls_per_s": round(sample.rate, 2),
        "calls_per_s_rounds": [round(rate, 1) for rate in sample.rates],
        "mean_ms": _milli(sample.mean_s),
        "p50_ms": _milli(sample.quantile_s(0.5)),
        "p99_ms": _milli(sample.quantile_s(0.99)),
        "cpu_ms": _milli(sample.cpu_ms / 1000),
        "client_cpu_ms": _milli(sample.client_cpu_s / sample.calls) if sample.calls else None,
        "bad": {
            str(verdict): count
            for verdict, count in sample.verdicts.items()
            if verdict is not Verdict.RIGHT
        },
    }


def _milli(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(1000 * seconds, 3)
