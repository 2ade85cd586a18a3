"""Any local file of problems with verifiable answers: AIME, HMMT, MATH-500, …"""

from __future__ import annotations

import re
from pathlib import Path

from rl.trajectory import Problem
from tasks.benchmarks.protocol import Benchmark
from tasks.problems import read_problems


class ProblemFile(Benchmark):
    """JSON lines with `problem` (or `question`) and `answer`, named after the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The name becomes part of metric and file names.
        self.name = re.sub(r"[^\w.-]+", "_", path.stem)

    def problems(self) -> list[Problem]:
        return read_problems(self.path)
