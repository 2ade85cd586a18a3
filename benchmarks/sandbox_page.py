"""Writes the figures of the last `benchmarks.sandbox` run into docs/performance.md, between its markers.

python -m benchmarks.sandbox_page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.outcome import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def main() -> None:
    record = json.loads((RESULTS / "sandbox.json").read_text())
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{render(record)}\n{END}{after}")
    print(f"{PAGE}: figures written")


def render(record: dict[str, Any]) -> str:
    """The figures as Markdown; parts that were not run are left out."""
    blocks = [_head(record), _goals(record["goals"])]
    if "cells" in record:
        blocks += _cells(record["cells"])
    blocks += [
        text for text in (_open(record), _full(record), _soak(record), _sizing(record)) if text
    ]
    return "\n\n".join(blocks)


def _head(record: dict[str, Any]) -> str:
    before, after = record["machine_before"], record["machine"]
    kind = "`--quick` run" if record["quick"] else "full run"
    seen = next(iter(record.get("programs_see", {}).values()), "")
    lines = [
        f"A {kind} on {before['cpus']} cores ({before['processor']}, {before['memory_gib']} GiB); load average "
        f"over 1, 5 and 15 minutes {_load(before)} before and {_load(after)} after, the benchmark's own included.",
        f"Level `{record['isolation']}`, {record['workers']} workers, {record['slots']} slots.",
    ]
    if seen:
        same = len(set(record["programs_see"].values())) == 1
        lines.append(
            f"Programs see {seen}{', on every backend' if same else ' on ours; others differ'}."
        )
    return "\n".join(lines)


def _load(machine: dict[str, Any]) -> str:
    return ", ".join(f"{value:g}" for value in machine["load"])


def _goals(goals: list[dict[str, Any]]) -> str:
    rows = [
        [goal["goal"], f"{goal['wanted']:g}", _number(goal["got"]), _verdict(goal)]
        for goal in goals
    ]
    return _table(["goal", "wanted", "measured", ""], rows)


def _verdict(goal: dict[str, Any]) -> str:
    if goal["got"] is None:
        return "not measured"
    return "held" if goal["held"] else "missed"


def _cells(cells: dict[str, dict[str, Any]]) -> list[str]:
    """One table a concurrency; the keys are "WORKLOAD at CONCURRENCY: BACKEND"."""
    split: list[tuple[str, str, str, dict[str, Any]]] = []
    for key, cell in cells.items():
        place, name = key.split(": ")
        workload, concurrency = place.split(" at ")
        split.append((workload, concurrency, name, cell))
    blocks = []
    for concurrency in dict.fromkeys(one[1] for one in split):
        here = {(workload, name): cell for workload, at, name, cell in split if at == concurrency}
        names = list(dict.fromkeys(name for _, name in here))
        rows = [
            [workload, *(_cell(here.get((workload, name))) for name in names)]
            for workload in dict.fromkeys(workload for workload, _ in here)
        ]
        title = f"**{concurrency} concurrent**: calls/s · p50/p99 ms · CPU-ms a call"
        blocks.append(title + "\n\n" + _table(["", *names], rows))
    return blocks


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None or not cell["calls"]:
        return "–"
    more = ">" if cell["given_up"] else ""
    text = f"{cell['calls_per_s']:.1f} · {more}{cell['p50_ms']:.1f}/{cell['p99_ms']:.0f} · {cell['cpu_ms']:.2f}"
    bad = ", ".join(f"{count} {name}" for name, count in cell["bad"].items())
    return f"{text} ({bad} of {cell['calls']})" if bad else text


def _open(record: dict[str, Any]) -> str:
    if "open_loop" not in record:
        return ""
    part = record["open_loop"]
    return (
        f"**Poisson arrivals** of the mix, {part['arrivals_per_s']}/s (70 % of the capacity): "
        f"mean {part['mean_ms']:.0f} ms, p50 {part['p50_ms']:.0f} ms, p99 {part['p99_ms']:.0f} ms "
        f"over {part['calls']:,} calls."
    )


def _full(record: dict[str, Any]) -> str:
    if "full_load" not in record:
        return ""
    part = record["full_load"]
    bad = ", ".join(f"{count} {name}" for name, count in part["bad"].items()) or "none"
    return (
        f"**Full load**: {part['calls']:,} calls of the mix, 1,000 outstanding: {part['calls_per_s']:.0f}/s, "
        f"{part['cpu_ms']:.1f} CPU-ms a call; answers that were not right: {bad}."
    )


def _soak(record: dict[str, Any]) -> str:
    if "soak" not in record:
        return ""
    part = record["soak"]
    text = (
        f"**Soak**: {part['calls']:,} calls outstanding at once, {part['calls_per_s']:.0f}/s, "
        f"{part['elapsed_s']:.0f} s, {part['cpu_ms']:.2f} CPU-ms a call; lost {part['lost']}, wrong {part['wrong']}."
    )
    names = list(part["before"])
    rows = [
        [moment, *(str(part[moment][name]) for name in names)] for moment in ("before", "after")
    ]
    return text + "\n\n" + _table(["", *(name.replace("_", " ") for name in names)], rows)


def _sizing(record: dict[str, Any]) -> str:
    if "sizing_45k" not in record:
        return ""
    rows = [[text, f"{count:,.1f}"] for text, count in record["sizing_45k"].items()]
    return "**Cores for 45,000 calls of the mix**, by how they arrive\n\n" + _table(
        ["", "cores"], rows
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
