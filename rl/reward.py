"""The reward: 1 if the last `\\boxed{}` of the last `<answer>` equals the label, else 0 (section 3.1).

Integers are compared exactly and at once. Everything else goes to math-verify in worker processes that
are killed at a deadline, because a model can write an answer that takes for ever (9^9^9^9).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from enum import StrEnum

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
INTEGER = re.compile(r"[+-]?\d+")
GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


class Verdict(StrEnum):
    """How a verification ended; only `CORRECT` is worth 1."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"  # no <answer> block, or no \\boxed{} in it
    UNREADABLE = "unreadable"  # math-verify finds nothing to compare
    TIMEOUT = "timeout"

    @property
    def reward(self) -> float:
        return float(self is Verdict.CORRECT)


def extract(text: str) -> str | None:
    """Content of the last `\\boxed{}` (braces balanced) in the last `<answer>` block of `text`."""
    blocks = ANSWER.findall(text)
    if not blocks:
        return None
    block = blocks[-1]
    start = block.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for i in range(begin, len(block)):
        depth += {"{": 1, "}": -1}.get(block[i], 0)
        if depth == 0:
            return block[begin + 1 : i].strip()
    return None


def integer(text: str) -> int | None:
    """The integer that `text` is, thousands commas and `$` allowed; None if it is anything else."""
    bare = text.strip().strip("$").replace("\u2212", "-").replace("{,}", ",").replace("\\,", "").strip()
    if GROUPED.fullmatch(bare):
        bare = bare.replace(",", "")
    # int() refuses more digits than this, and no label is as long
    return int(bare) if INTEGER.fullmatch(bare) and len(bare) < 4000 else None


@dataclass
class _Worker:
    process: asyncio.subprocess.Process

    async def ask(self, label: str, answer: str) -> Verdict:
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("the worker was started with pipes")
        self.process.stdin.write(json.dumps([label, answer]).encode() + b"\n")
        await self.process.stdin.drain()
        line = await self.process.stdout.readline()
        return Verdict(line.decode().strip()) if line else Verdict.UNREADABLE


class Verifier:
    """Verifies answers; owns up to `workers` math-verify processes, started when first needed."""

    def __init__(self, workers: int = 2, deadline_s: float = 5.0) -> None:
        self.deadline_s = deadline_s
        self._free = asyncio.Semaphore(workers)
        self._idle: list[_Worker] = []

    async def verify(self, text: str, label: str) -> Verdict:
        answer = extract(text)
        if answer is None:
            return Verdict.NO_ANSWER
        expected, given = integer(label), integer(answer)
        if expected is not None and given is not None:
            return Verdict.CORRECT if expected == given else Verdict.WRONG
        async with self._free:
            return await self._ask(label, answer)

    async def close(self) -> None:
        for worker in self._idle:
            worker.process.kill()
            await worker.process.wait()
        self._idle.clear()

    async def _ask(self, label: str, answer: str) -> Verdict:
        worker = self._idle.pop() if self._idle else await _start_worker()
        try:
            verdict = await asyncio.wait_for(worker.ask(label, answer), self.deadline_s)
        except (TimeoutError, BrokenPipeError, ConnectionResetError) as end:
            worker.process.kill()
            await worker.process.wait()
            return Verdict.TIMEOUT if isinstance(end, TimeoutError) else Verdict.UNREADABLE
        if worker.process.returncode is None:
            self._idle.append(worker)
        return verdict


async def _start_worker() -> _Worker:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rl.verify_worker", stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    worker = _Worker(process)
    await worker.ask("1", "1")  # imports take seconds; they are not the first answer's fault
    return worker
