"""The held-out problems that stage `curate` set aside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl.trajectory import Problem
from sandbox.errors import UserError
from tasks.benchmarks.protocol import Benchmark
from tasks.problems import read_problems


@dataclass
class HeldOut(Benchmark):
    """The first `limit` held-out problems: those that every stage is evaluated on."""

    curated: Path | None
    limit: int
    name: str = "held_out"

    def problems(self) -> list[Problem]:
        if self.curated is None:
            raise UserError(
                "evaluate.benchmarks: held_out needs a curate stage, and this evaluation has none; give it a "
                "JSONL file with problem and answer columns instead"
            )
        return read_problems(self.curated / "held_out.jsonl")[: self.limit]
