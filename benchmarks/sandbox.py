"""The sandbox against code-judge's way of working and plain subprocesses, on the machine at hand.

    python -m benchmarks.sandbox [--quick] [--code-judge DIR] [--columns batch,run] [--parts compare,soak]

One process asks all of them in interleaved rounds for the same programs, and checks every answer. Programs
meet the same interpreter version and packages everywhere (printed). Then Poisson arrivals at 70 % of the
capacity just measured, 10,000 calls at full load, and a soak of 45,000 outstanding calls. Goals are printed
beside what came out; they are about a quiet machine and no test.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.outcome import finish, machine
from benchmarks.sandboxes import columns, goals, parts, report, sizing
from benchmarks.sandboxes.columns import Columns
from benchmarks.sandboxes.drive import Sample
from benchmarks.sandboxes.ours import Running
from benchmarks.sandboxes.plan import FULL, PARTS, QUICK, Plan
from benchmarks.sandboxes.report import Cells, Goal
from sandbox.config import SandboxConfig
from sandbox.errors import InfrastructureError, UserError

NAME = "sandbox"


def main() -> None:
    options = _parse()
    wanted = tuple(options.columns.split(","))
    chosen = Columns(
        wanted,
        options.code_judge,
        options.judge_workers,
        options.judge_batch,
        options.plain_at_once,
    )
    plan = QUICK if options.quick else FULL
    try:
        config = SandboxConfig.model_validate_json(options.config)
        figures = asyncio.run(measure(config, chosen, options.parts.split(","), plan))
    except (UserError, InfrastructureError) as error:
        raise SystemExit(f"bench: {error}") from None
    except asyncio.CancelledError:
        raise SystemExit("bench: stopped") from None
    finish(NAME, figures, goals.SUMMARY)


async def measure(
    config: SandboxConfig, chosen: Columns, wanted: list[str], plan: Plan
) -> dict[str, Any]:
    """Do the `wanted` parts with a sandbox of our own; print tables and goals, return the figures."""
    started_at = time.monotonic()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, task.cancel
    )  # and so stop all servers
    running = Running(config)
    figures: dict[str, Any] = {"quick": plan is QUICK, "machine_before": machine()}
    reached: list[Goal] = []
    cells: Cells = {}
    try:
        running.start()
        figures |= running.description()
        if "compare" in wanted:
            cells = await _compare(running, chosen, plan, figures, reached)
        if "open" in wanted:
            await _arrivals(running, cells, plan, figures, reached)
        if "full" in wanted:
            sample = await parts.full_load(running, plan)
            print(f"\nfull load: {report.sentence(sample)}")
            figures["full_load"] = report.record(sample)
            reached.append(goals.of_full_load(sample))
        if "soak" in wanted:
            soaked = await parts.soak(running, plan)
            print("\n".join(soaked.lines()))
            figures["soak"] = soaked.figures()
            reached.append(
                Goal("soak: lost + wrong answers + kinds of growth", 0, soaked.faults, False)
            )
    finally:
        running.stop()
    _print_sizing(cells, figures)
    print(f"\ngoals, after {time.monotonic() - started_at:.0f} s; load {machine()['load']}")
    print("\n".join(goal.line() for goal in reached))
    return figures | {"goals": [goal.record() for goal in reached]}


async def _compare(
    running: Running, chosen: Columns, plan: Plan, figures: dict[str, Any], reached: list[Goal]
) -> Cells:
    async with columns.started(chosen, running) as backends:
        seen = await parts.survey(backends)
        _print_head(figures, chosen, seen)
        cells = await parts.compare(backends, plan)
    names = [backend.name for backend in backends]
    report.print_tables(cells, names)
    figures["programs_see"] = seen
    figures["judge_workers"] = chosen.judge_workers
    figures["cells"] = {
        f"{workload} at {concurrency}: {name}": report.record(sample)
        for (workload, concurrency, name), sample in cells.items()
    }
    peer = next((name for name in names if name.startswith("code-judge")), "code-judge")
    figures |= goals.figures(cells, peer)
    reached += goals.of_comparison(cells, peer)
    print("\n".join(goals.ceiling_lines(cells, peer)))
    return cells


async def _arrivals(
    running: Running, cells: Cells, plan: Plan, figures: dict[str, Any], reached: list[Goal]
) -> None:
    """The capacity is /batch's on the whole mix at 32 concurrent: of the comparison, or measured for this."""
    capacity = cells.get(("mix", goals.AT, goals.OURS), Sample())
    if not capacity.calls:
        capacity = await parts.capacity(running, plan)
    rate, sample = await parts.arrivals(running, capacity.rate, plan)
    print(
        f"\nPoisson arrivals, mix, {rate:.0f}/s = 70 % of {capacity.rate:.0f}/s: {report.sentence(sample)}"
    )
    figures["open_loop"] = {"arrivals_per_s": round(rate, 1), **report.record(sample)}
    reached.append(goals.of_open_loop(sample))


def _print_head(figures: dict[str, Any], chosen: Columns, seen: dict[str, str]) -> None:
    spot = figures["machine_before"]
    print(
        f"{spot['cpus']} cores, {spot['processor']}, {spot['memory_gib']} GiB; load at start {spot['load']}"
    )
    print(f"ours: {figures['isolation']}, {figures['slots']} slots in {figures['workers']} workers")
    print(
        f"code-judge's way: {chosen.judge_workers} workers; plain: {chosen.plain_at_once} processes at once"
    )
    same = len(set(seen.values())) == 1
    print(
        "programs see, on every backend: " + next(iter(seen.values()))
        if same
        else f"programs DIFFER: {seen}"
    )


def _print_sizing(cells: Cells, figures: dict[str, Any]) -> None:
    sample = cells.get(("mix", goals.AT, goals.OURS))
    if sample is not None and sample.calls:
        print("\n" + "\n".join(sizing.lines(sample.cpu_ms)))
        figures["sizing_45k"] = {
            text: round(count, 1) for text, count in sizing.table(sample.cpu_ms)
        }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about two minutes instead of twelve")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    standard = Columns()
    parser.add_argument(
        "--columns", default=",".join(standard.wanted), help="some of " + ",".join(columns.NAMES)
    )
    parser.add_argument(
        "--code-judge",
        type=Path,
        metavar="DIR",
        help="a checkout of 0xWJ/code-judge to run for real",
    )
    parser.add_argument(
        "--judge-workers",
        type=int,
        default=standard.judge_workers,
        help="default: one a core, its own",
    )
    parser.add_argument(
        "--judge-batch",
        type=int,
        default=standard.judge_width,
        help="above 1: /run/long-batch of so many",
    )
    parser.add_argument(
        "--plain-at-once", type=int, default=standard.plain_at_once, help="default %(default)s"
    )
    parser.add_argument("--config", default="{}", help="SandboxConfig as JSON")
    options = parser.parse_args()
    for name, allowed in (("parts", PARTS), ("columns", columns.NAMES)):
        if unknown := set(getattr(options, name).split(",")) - set(allowed):
            parser.error(
                f"--{name}: expected some of {','.join(allowed)}, got {','.join(sorted(unknown))}"
            )
    if options.code_judge is not None and not (options.code_judge / "run_workers.py").is_file():
        parser.error(
            f"--code-judge: expected a checkout with run_workers.py in it, got {options.code_judge}"
        )
    options.code_judge = options.code_judge and options.code_judge.resolve()
    return options


if __name__ == "__main__":
    main()
