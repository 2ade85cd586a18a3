"""Canaries: every few seconds each worker must answer a call whose answer is known.

A worker that answers wrongly, mixes calls up or does not answer at all is replaced, whatever else it does well.
The question is new each time, so an old answer or another call's is wrong. A canary that only ran out of
time says that the machine is busy, and costs nobody anything.
"""

from __future__ import annotations

import asyncio
import secrets

from sandbox.calls import Calls
from sandbox.config import Limits
from sandbox.image.server import wire
from sandbox.outcome import Status
from sandbox.request import CallRequest

EVERY_S = 5.0
LIMITS = Limits(cpu_s=10, wall_s=30, memory_mb=512)
MISSING_S = (
    45.0  # the worker itself ends a call at its wall limit: no answer by then, and it is broken
)
PLAIN = "import sys\nprint(sum(int(word) for word in sys.stdin.read().split()))"
NUMPY = "import sys\nimport numpy\nprint(numpy.array(sys.stdin.read().split(), dtype=int).sum())"
SLOW = {Status.TIMEOUT, Status.CPU_LIMIT, Status.OOM_VICTIM, Status.CANCELLED}
LOST_IN_A_ROW = 3  # a canary may be lost with its fork server, but not each time


class Canaries:
    """`keep()` watches all workers until it is cancelled."""

    def __init__(self, calls: Calls, every_s: float = EVERY_S) -> None:
        self._calls = calls
        self._every_s = every_s

    async def keep(self) -> None:
        await asyncio.gather(*(self._watch(i) for i in range(self._calls.workers.count)))

    async def _watch(self, worker: int) -> None:
        turn = lost = 0
        while True:
            await asyncio.sleep(self._every_s)
            turn += 1
            numpy_there = "numpy" not in self._calls.workers.missing
            result = await self._check(worker, NUMPY if turn % 2 and numpy_there else PLAIN)
            self._calls.metrics.canary(result)
            lost = lost + 1 if result == "lost" else 0
            if lost == LOST_IN_A_ROW:
                self._calls.workers.drop(worker, f"{lost} canaries in a row were lost in it")

    async def _check(self, worker: int, code: str) -> str:
        """right, slow, lost, wrong or missing; the last two have replaced the worker."""
        numbers = [secrets.randbelow(1 << 20) for _ in range(8)]
        call = CallRequest(code=code, stdin=" ".join(map(str, numbers)), limits=LIMITS)
        try:
            reply = await self._calls.ask(worker, call, MISSING_S)
        except TimeoutError:
            self._calls.workers.drop(worker, f"no answer to a canary within {MISSING_S:g} s")
            return "missing"
        if Status(reply["status"]) in SLOW:
            return "slow"
        if reply["status"] == Status.SANDBOX_ERROR.value:
            return "lost"
        if _right(reply, sum(numbers)):
            return "right"
        said = f"{reply['status']} {reply.get('stdout', '')!r:.80} {reply.get('stderr', '')!r:.200}"
        self._calls.workers.drop(worker, f"a canary came to {sum(numbers)}, its answer was {said}")
        return "wrong"


def _right(reply: wire.Message, total: int) -> bool:
    return reply["status"] == Status.OK.value and reply["stdout"] == f"{total}\n"
