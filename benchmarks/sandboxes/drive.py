"""Two ways to put load on a backend: a fixed number of calls outstanding, or arrivals that wait for nobody."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp

from benchmarks.sandboxes.backend import Backend, OnAnswer
from benchmarks.sandboxes.programs import Answer, Ending, Program, Verdict

PAUSE_S = 0.2  # after a failed connection
SMALL_REST = 64  # calls that are always waited for


@dataclass
class Sample:
    """What was seen of one backend with one workload; samples of several rounds add up."""

    calls: int = 0
    given_up: int = 0  # still outstanding when the window closed: in no other figure
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    rates: list[float] = field(default_factory=list)  # calls/s of each round

    def add(self, other: Sample) -> None:
        self.calls += other.calls
        self.given_up += other.given_up
        self.elapsed_s += other.elapsed_s
        self.cpu_s += other.cpu_s
        self.client_cpu_s += other.client_cpu_s
        self.latencies_s += other.latencies_s
        self.verdicts += other.verdicts
        self.rates += other.rates

    @property
    def rate(self) -> float:
        return self.calls / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def cpu_ms(self) -> float:
        """CPU-milliseconds a call, of the backend alone."""
        return 1000 * self.cpu_s / self.calls if self.calls else math.nan

    @property
    def mean_s(self) -> float:
        return sum(self.latencies_s) / len(self.latencies_s) if self.latencies_s else math.nan

    def quantile_s(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return (
            ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
            if ordered
            else math.nan
        )

    @property
    def bad(self) -> int:
        """Answers that were not right."""
        return sum(
            count for verdict, count in self.verdicts.items() if verdict is not Verdict.RIGHT
        )


class _Watch:
    """Notes answers and what they cost while it is open."""

    def __init__(self, backend: Backend) -> None:
        self.sample = Sample()
        self._backend = backend
        self._cpu_s = backend.cpu_s()
        self._client_cpu_s = _own_cpu_s()
        self._started_at = time.monotonic()
        self.news = asyncio.Event()

    def noter(self, batch: list[Program], asked_at: float) -> OnAnswer:
        def note(index: int, answer: Answer) -> None:
            self.news.set()
            self.sample.calls += 1
            self.sample.latencies_s.append(time.monotonic() - asked_at)
            self.sample.verdicts[batch[index].judge(answer)] += 1

        return note

    def close(self) -> Sample:
        sample = self.sample
        sample.elapsed_s = time.monotonic() - self._started_at
        sample.cpu_s = self._backend.cpu_s() - self._cpu_s
        sample.client_cpu_s = _own_cpu_s() - self._client_cpu_s
        sample.rates = [sample.rate]
        return sample


async def closed_loop(
    backend: Backend,
    workload: Iterator[Program],
    concurrency: int,
    window_s: float = math.inf,
    calls: float = math.inf,
) -> Sample:
    """Keep `concurrency` calls outstanding, in the mean, until the window closes or `calls` have been asked: a
    wide backend gets its next batch once there is room for half of it. Then wait for the rest, unless that
    would take longer than the window did: those calls are given up.
    """
    watch = _Watch(backend)
    loop = asyncio.get_running_loop()
    closes_at = loop.time() + window_s
    asked = 0
    width = min(backend.width, concurrency)
    requests: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        requests.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failed.append(error)
        watch.news.set()

    closing = None if window_s == math.inf else loop.call_at(closes_at, watch.news.set)
    try:
        while asked < calls and loop.time() < closes_at and not failed:
            if asked - watch.sample.calls > concurrency - width / 2:
                watch.news.clear()
                await watch.news.wait()
                continue
            batch = [next(workload) for _ in range(int(min(width, calls - asked)))]
            asked += len(batch)
            task = asyncio.create_task(_ask(backend, batch, watch.noter(batch, time.monotonic())))
            requests.add(task)
            task.add_done_callback(ended)
        left = asked - watch.sample.calls
        if window_s == math.inf or left <= max(watch.sample.calls, SMALL_REST):
            await asyncio.gather(*requests)
            left = 0
        if failed:
            raise failed[0]
        sample = watch.close()
    finally:
        if closing is not None:
            closing.cancel()
        for task in list(requests):
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
    if left:
        sample.given_up = left
        await backend.reset()
    return sample


async def open_loop(
    backend: Backend, workload: Iterator[Program], rate: float, window_s: float, seed: int
) -> Sample:
    """Poisson arrivals, `rate` a second; a latency counts from the moment a call was due, not sent."""
    watch = _Watch(backend)
    gaps = random.Random(seed)
    calls: set[asyncio.Task[None]] = set()
    started_at = due_at = time.monotonic()

    async def call(program: Program, due_at: float) -> None:
        await _ask(backend, [program], watch.noter([program], due_at))

    while due_at - started_at < window_s:
        await asyncio.sleep(max(0.0, due_at - time.monotonic()))
        calls.add(asyncio.create_task(call(next(workload), due_at)))
        due_at += gaps.expovariate(rate)
    await asyncio.gather(*calls)
    return watch.close()


async def _ask(backend: Backend, batch: list[Program], note: OnAnswer) -> None:
    """One request; a connection that fails leaves its unanswered calls lost."""
    open_calls = set(range(len(batch)))

    def on_answer(index: int, answer: Answer) -> None:
        open_calls.discard(index)
        note(index, answer)

    try:
        await backend.run(batch, on_answer)
    except (aiohttp.ClientError, OSError) as error:
        await asyncio.sleep(PAUSE_S)
        for index in sorted(open_calls):
            note(index, Answer(Ending.FAILED, stderr=repr(error)))


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system
