"""The columns of the comparison: which backends, started together and stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sandboxes import parts
from benchmarks.sandboxes.backend import Backend
from benchmarks.sandboxes.environment import programs_python, service_python
from benchmarks.sandboxes.judge import Judge
from benchmarks.sandboxes.ours import Ours, OursBySocket, Running
from benchmarks.sandboxes.plain import Plain

BATCH = 32
CORES = os.cpu_count() or 1
# "stand-in" is for calibrating it against the real code-judge, in the same run.
NAMES = ("batch", "run", "client", "code-judge", "stand-in", "plain")


@dataclass(frozen=True)
class Columns:
    wanted: tuple[str, ...] = ("batch", "run", "code-judge", "plain")
    checkout: Path | None = None  # of code-judge; None = the stand-in
    judge_workers: int = CORES
    judge_width: int = 1  # 1 = /run, more = /run/long-batch of so many
    plain_at_once: int = CORES + 1


@contextlib.asynccontextmanager
async def started(columns: Columns, running: Running) -> AsyncIterator[list[Backend]]:
    programs, shares = programs_python(await _python_version(running)), running.shares()
    backends: list[Backend] = []
    try:
        for name in columns.wanted:
            backends.append(_make(name, columns, running, programs, shares))
            await backends[-1].start()
        yield backends
    finally:
        for backend in backends:
            await backend.stop()


def _make(name: str, columns: Columns, running: Running, programs: Path, shares: int) -> Backend:
    if name == "batch":
        return Ours(running, BATCH)
    if name == "run":
        return Ours(running, 1)
    if name == "client":
        return OursBySocket(running)
    if name == "plain":
        return Plain(programs, columns.plain_at_once, shares)
    workers, width = columns.judge_workers, columns.judge_width
    checkout = columns.checkout if name == "code-judge" else None
    return Judge(checkout, service_python(), programs, workers, width, shares)


async def _python_version(running: Running) -> str:
    """Of the Python in the sandbox, as "3.11"."""
    single = OursBySocket(running)
    await single.start()
    try:
        told = (await parts.survey([single]))[single.name]
    finally:
        await single.stop()
    return ".".join(told.split()[1].split(".")[:2])
