"""The parts of a run: compare in interleaved rounds, open-loop arrivals, false time-outs, soak."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.sandboxes import inside
from benchmarks.sandboxes.backend import Backend
from benchmarks.sandboxes.drive import Sample, closed_loop, open_loop
from benchmarks.sandboxes.ours import Ours, Running
from benchmarks.sandboxes.plan import Plan
from benchmarks.sandboxes.programs import MIXES, Answer, Ending, Program, Verdict, programs
from benchmarks.sandboxes.report import Cells, describe
from sandbox.errors import UserError

BATCH = 32
BUSY_SHARE = 0.7  # of the measured capacity: the arrivals of the open loop
SOAK_WIDTH = 450  # calls a request; all are outstanding at once
WARM_CALLS = 64
IDLE_S = 3.0
SURVEY_TRIES = 5  # the first imports from a cold disk may outlast the limit
SURVEY = (
    "import sys, numpy, scipy, sympy, mpmath, networkx, pandas\n"
    "print('Python', sys.version.split()[0], *(f'{m.__name__} {m.__version__}' for m in "
    "(numpy, scipy, sympy, mpmath, networkx, pandas)))"
)


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


async def survey(backends: Sequence[Backend]) -> dict[str, str]:
    """The interpreter and packages that programs really meet, by backend."""
    return {backend.name: await _told(backend) for backend in backends}


async def _told(backend: Backend) -> str:
    said: list[Answer] = []

    def note(_: int, answer: Answer) -> None:
        said.append(answer)

    for _ in range(SURVEY_TRIES):
        await backend.run([Program("survey", SURVEY, Ending.OK)], note)
        if said[-1].ending is Ending.OK:
            return said[-1].stdout.strip()
    raise UserError(
        f"{backend.name}: a program that names its Python and packages should end well, but its last try of "
        f"{SURVEY_TRIES} ended as {said[-1].ending}: {said[-1].stderr.strip()[-500:]}"
    )


async def compare(backends: Sequence[Backend], plan: Plan) -> Cells:
    """Rounds are interleaved and each begins with another backend, so that outside load meets all alike."""
    cells: Cells = {}
    for backend in backends:
        await closed_loop(backend, programs("mix_no_loop"), 8, calls=WARM_CALLS)
    for cell in plan.cells:
        for workload in cell.workloads:
            for turn in range(cell.rounds):
                shift = turn % len(backends)
                for backend in [*backends[shift:], *backends[:shift]]:
                    if cell.concurrency == 1 and backend.width > 1:
                        continue
                    sample = await closed_loop(
                        backend, programs(workload, turn), cell.concurrency, cell.window_s
                    )
                    cells.setdefault((workload, cell.concurrency, backend.name), Sample()).add(
                        sample
                    )
            say(f"{workload} at {cell.concurrency}: done")
    return cells


async def capacity(running: Running, plan: Plan) -> Sample:
    """The whole mix by /batch of 32, 32 outstanding."""
    cell = next(cell for cell in plan.cells if cell.concurrency == BATCH)
    async with _ours(running, BATCH) as batch:
        return await closed_loop(batch, programs("mix"), BATCH, cell.rounds * cell.window_s)


async def arrivals(running: Running, capacity: float, plan: Plan) -> tuple[float, Sample]:
    """Poisson arrivals of the mix by /run, at a share of the capacity; their rate, and what came of it."""
    rate = BUSY_SHARE * capacity
    async with _ours(running, 1) as single:
        return rate, await open_loop(single, programs("mix", 7), rate, plan.open_s, seed=7)


async def full_load(running: Running, plan: Plan) -> Sample:
    """The mix by /batch of 32 with 1,000 calls outstanding until `full_calls` are answered."""
    async with _ours(running, BATCH) as batch:
        return await closed_loop(batch, programs("mix", 9), 1000, calls=plan.full_calls)


@dataclass(frozen=True)
class Soak:
    calls: int
    sample: Sample
    before: inside.Held
    after: inside.Held
    grown: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        verdicts = self.sample.verdicts
        return {
            "calls": self.calls,
            "lost": self.calls - self.sample.calls + verdicts[Verdict.LOST],
            "wrong": self.sample.bad - verdicts[Verdict.LOST],
            "elapsed_s": round(self.sample.elapsed_s, 1),
            "calls_per_s": round(self.sample.rate, 1),
            "cpu_ms": round(self.sample.cpu_ms, 3),
            "before": asdict(self.before),
            "after": asdict(self.after),
            "grown": self.grown,
        }

    @property
    def faults(self) -> int:
        figures = self.figures()
        return int(figures["lost"]) + int(figures["wrong"]) + len(self.grown)

    def lines(self) -> list[str]:
        figures, mix = (
            self.figures(),
            ", ".join(f"{share} % {kind}" for kind, share in MIXES["soak"].items()),
        )
        growth = self.after.growth(self.before)
        told = ", ".join(
            f"{name} {value} ({growth[name]:+})" for name, value in asdict(self.after).items()
        )
        return [
            f"\nsoak: {self.calls:,} calls outstanding at once ({mix})",
            f"  lost {figures['lost']}, wrong {figures['wrong']} {describe(self.sample)}, {figures['calls_per_s']}/s, "
            f"{figures['elapsed_s']} s, {figures['cpu_ms']:.2f} CPU-ms a call",
            f"  held afterwards (growth): {told}",
            f"  {'nothing grew' if not self.grown else 'GREW: ' + ', '.join(self.grown)}",
        ]


async def soak(running: Running, plan: Plan) -> Soak:
    """Everything outstanding at once; the sandbox is looked at when it is warm and idle, before and after."""
    async with _ours(running, BATCH) as warm:
        await closed_loop(warm, programs("soak", 1), 256, calls=2_000)
    await asyncio.sleep(IDLE_S)
    before = inside.look(running)
    async with _ours(running, SOAK_WIDTH) as crowd:
        sample = await closed_loop(
            crowd, programs("soak", 2), plan.soak_calls, calls=plan.soak_calls
        )
    await asyncio.sleep(IDLE_S)
    after = inside.look(running)
    return Soak(plan.soak_calls, sample, before, after, inside.grown(after.growth(before)))


@contextlib.asynccontextmanager
async def _ours(running: Running, width: int) -> AsyncIterator[Ours]:
    backend = Ours(running, width)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()
