"""From `evaluate.benchmarks` to benchmarks: the named ones, and files of problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import UserError
from tasks.benchmarks.held_out import HeldOut
from tasks.benchmarks.problem_file import ProblemFile
from tasks.benchmarks.protocol import Benchmark


@dataclass(frozen=True)
class Sources:
    """Where a benchmark may take its problems from."""

    curated: Path | None  # outputs of stage curate
    held_out_problems: int


NAMED: dict[str, Callable[[Sources], Benchmark]] = {
    "held_out": lambda sources: HeldOut(sources.curated, sources.held_out_problems),
}


def find(wanted: list[str], sources: Sources) -> list[Benchmark]:
    """The benchmarks that `evaluate.benchmarks` asks for, in its order."""
    if not wanted:
        raise UserError(f"evaluate.benchmarks is empty; give {_valid()}")
    found = [_one(name, sources) for name in wanted]
    twice = [
        name for name, count in Counter(benchmark.name for benchmark in found).items() if count > 1
    ]
    if twice:
        raise UserError(
            f"evaluate.benchmarks: {', '.join(twice)} is there twice; results are kept by name"
        )
    return found


def _one(name: str, sources: Sources) -> Benchmark:
    if name in NAMED:
        return NAMED[name](sources)
    path = Path(name).expanduser()
    if path.suffix in (".jsonl", ".json") or path.is_file():
        return ProblemFile(path)
    raise UserError(f"evaluate.benchmarks: there is no benchmark '{name}'; give {_valid()}")


def _valid() -> str:
    return f"{', '.join(NAMED)}, or a JSONL file with problem and answer columns"
