"""The calls of a gateway, from arrival to answer, whatever transport brought them.

Calls wait here, outside their clocks, and only as many as there are slots are inside the box. Invariants: every
call is answered exactly once, unless it was abandoned; a call that the sandbox itself failed goes back to
the head of the queue, at most MAX_ATTEMPTS times in all; a queue that is full in calls or in bytes refuses.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox.box import Box, Place
from sandbox.config import SandboxConfig
from sandbox.image.server import wire
from sandbox.metrics import Metrics
from sandbox.outcome import Status
from sandbox.request import CallRequest
from sandbox.say import say_seldom
from sandbox.workers import Workers

MAX_ATTEMPTS = 3
RETRY_PAUSE_S = 0.05  # a worker that just lost a call may need a moment
SMOOTHING = 0.05  # weight of the newest call in the running means
FIRST_COST_S = 0.05  # what a call is taken to cost before any has ended
RETRY_AFTER_S = (0.1, 60.0)  # bounds of the estimate
LOST: wire.Message = {"status": Status.SANDBOX_ERROR.value, "stderr": "lost with its worker"}
# A cancellation that nobody here asked for is a call lost with its worker too.
RETRIED = {Status.SANDBOX_ERROR, Status.OOM_VICTIM, Status.CANCELLED}

OnAnswer = Callable[[wire.Message], None]


@dataclass(eq=False)
class Pending:
    """A call that has not been answered yet."""

    request: wire.Message
    size: int
    on_answer: OnAnswer
    arrived_at: float
    tag: str | None = None
    probe: bool = False  # one of ours: neither counted nor repeated
    attempt: int = 1
    queued: bool = False
    number: int = 0  # inside the box; else 0
    sent_at: float = 0.0
    done: bool = False  # answered or abandoned
    timer: asyncio.TimerHandle | None = None


def into(answer: asyncio.Future[wire.Message]) -> OnAnswer:
    """Hands a reply to whoever awaits `answer`, if somebody still does."""
    return lambda reply: None if answer.done() else answer.set_result(reply)


class Calls:
    """The queue in front of `workers`."""

    def __init__(self, config: SandboxConfig, box: Box, place: Place) -> None:
        self._config = config
        self._box = box
        self.metrics = Metrics()
        self.workers = Workers(config, box, place, self._on_reply, self.fill)
        self._queue: deque[Pending] = deque()  # abandoned ones stay in it until they are met
        self._queued = 0
        self._queued_size = 0
        self._probes: dict[int, Pending] = {}  # by worker
        self._inside: dict[int, Pending] = {}
        self._numbers = itertools.count(1)
        self.slots = config.all_slots
        self._cpu_s = self._wall_s = FIRST_COST_S  # running means over the calls

    @property
    def retry_after_s(self) -> float:
        """About how long the queue needs to be worked off, by CPU or by slots, whichever binds."""
        cores = len(os.sched_getaffinity(0))
        a_call_s = max(self._cpu_s / cores, self._wall_s / self.slots)
        least, most = RETRY_AFTER_S
        return round(min(most, max(least, self._queued * a_call_s)), 3)

    def check(self, request: CallRequest) -> None:
        """BadCall for what `submit` would not take."""
        request.inner(self._config.limits)

    def submit(self, request: CallRequest, on_answer: OnAnswer) -> Pending:
        """Queue a call; `on_answer` gets its reply, at once if it is refused. BadCall for a bad one."""
        inner = request.inner(self._config.limits)
        pending = Pending(inner, request.size, on_answer, time.monotonic(), request.tag)
        if self._full(request.size):
            say_seldom(
                "full",
                f"the queue is full ({self._queued} calls, {self._queued_size >> 20} MiB): calls are refused",
            )
            self._refuse(pending, "the queue is full")
            return pending
        if request.deadline_s is not None:
            loop = asyncio.get_running_loop()
            pending.timer = loop.call_later(request.deadline_s, self._expire, pending)
        self._enqueue(pending)
        self.fill()
        return pending

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for this call any more: it is not started, or ended where it runs."""
        if pending.done:
            return
        self._finish(pending)
        self.metrics.answered({"status": Status.CANCELLED.value})

    async def ask(self, worker: int, request: CallRequest, within_s: float) -> wire.Message:
        """Run a probe on `worker` as soon as that has room, ahead of the queue; TimeoutError if it has not
        answered `within_s` after it started."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[wire.Message] = loop.create_future()
        inner = request.inner(self._config.limits)
        pending = Pending(inner, 0, into(answer), time.monotonic(), probe=True)
        self._probes[worker] = pending
        self.fill()
        try:
            while not pending.sent_at:
                await asyncio.wait([answer], timeout=within_s)
            return await asyncio.wait_for(asyncio.shield(answer), within_s)
        finally:
            self._probes.pop(worker, None)
            self._finish(pending)

    def health(self) -> dict[str, Any]:
        """What SandboxClient.health() returns."""
        return {
            "isolation": self._box.isolation,
            "ready": self.workers.ready > 0,
            "slots": self.slots,
            "workers": self.workers.count,
            "running": self.workers.running,
            "queued": self._queued,
            "calls": dict(self.metrics.by_status),
            "restarts": self.workers.restarts,
            "lost_workers": self.workers.lost_workers,
            "zygotes_mb": self.workers.zygotes_mb,
            "missing_packages": self.workers.missing,
        }

    def exposition(self) -> bytes:
        """What Prometheus scrapes."""
        return self.metrics.text(
            {
                "running": self.workers.running,
                "queued": self._queued,
                "queued_characters": self._queued_size,
                "slots": self.slots,
                "workers_ready": self.workers.ready,
                "restarts": self.workers.restarts,
                "lost_workers": self.workers.lost_workers,
            }
        )

    def fill(self) -> None:
        """Send in what waits while there is room."""
        for index in [one for one in self._probes if self.workers.room_of(one) > 0]:
            probe = self._probes.pop(index)
            self.workers.send_to(index, self._enter(probe), probe.request)
        while self._queue and self.workers.room > 0:
            pending = self._queue.popleft()
            if pending.queued:
                self._leave_queue(pending)
                self.workers.send(self._enter(pending), pending.request)

    def _full(self, size: int) -> bool:
        if self._queued >= self._config.queue:
            return True
        return self._queued > 0 and self._queued_size + size > self._config.queue_mb << 20

    def _enqueue(self, pending: Pending, first: bool = False) -> None:
        pending.queued = True
        self._queued += 1
        self._queued_size += pending.size
        if first:
            self._queue.appendleft(pending)
        else:
            self._queue.append(pending)

    def _leave_queue(self, pending: Pending) -> None:
        pending.queued = False
        self._queued -= 1
        self._queued_size -= pending.size

    def _enter(self, pending: Pending) -> int:
        """The number of `pending` inside the box, where it goes next."""
        pending.number = next(self._numbers)
        pending.sent_at = time.monotonic()
        self._inside[pending.number] = pending
        return pending.number

    def _on_reply(self, number: int, reply: wire.Message | None) -> None:
        """`reply` None: the call was lost with its worker."""
        pending = self._inside.pop(number)
        pending.number = 0
        if pending.done:
            return
        reply = LOST if reply is None else reply
        if pending.probe:
            pending.on_answer(reply)
            return
        status = Status(reply["status"])
        if status is Status.OOM_VICTIM:
            self.metrics.oom_killed()
        if status in RETRIED and pending.attempt < MAX_ATTEMPTS:
            self.metrics.retried(status.value)
            loop = asyncio.get_running_loop()
            loop.call_later(RETRY_PAUSE_S * pending.attempt, self._repeat, pending)
            pending.attempt += 1
            return
        if status is Status.OOM_VICTIM:  # so often is no accident: it is the cause
            reply = {**reply, "status": Status.MEMORY.value}
        if status is Status.CANCELLED:
            reply = LOST
        self._learn_cost(reply)
        self._answer(pending, reply)

    def _repeat(self, pending: Pending) -> None:
        if not pending.done:
            self._enqueue(pending, first=True)
            self.fill()

    def _learn_cost(self, reply: wire.Message) -> None:
        if Status(reply["status"]).infrastructure:
            return
        self._cpu_s += SMOOTHING * (reply.get("cpu_s", 0.0) - self._cpu_s)
        self._wall_s += SMOOTHING * (reply.get("wall_s", 0.0) - self._wall_s)

    def _expire(self, pending: Pending) -> None:
        """Its deadline has passed: what never ran was refused, what runs is ended."""
        if pending.done:
            return
        if pending.number:
            self._answer(
                pending,
                {"status": Status.CANCELLED.value, "stderr": "deadline_s passed while it ran"},
            )
        else:
            self._refuse(pending, "deadline_s passed before it could start")

    def _refuse(self, pending: Pending, why: str) -> None:
        reply = {"stderr": why, "retry_after_s": self.retry_after_s}
        self._answer(pending, {"status": Status.OVERLOADED.value, **reply})

    def _answer(self, pending: Pending, reply: wire.Message) -> None:
        self._finish(pending)
        left_queue_at = pending.sent_at or time.monotonic()
        reply = {
            **reply,
            "queue_s": round(left_queue_at - pending.arrived_at, 6),
            "isolation": self._box.isolation,
            "attempt": pending.attempt,
        }
        reply.pop("id", None)
        if pending.tag is not None:
            reply["tag"] = pending.tag
        self.metrics.answered(reply)
        pending.on_answer(reply)

    def _finish(self, pending: Pending) -> None:
        """From here on, whatever the box still says of this call is passed over."""
        pending.done = True
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.queued:
            self._leave_queue(pending)
        if pending.number:
            self.workers.cancel(pending.number)
