"""The gateway: one asyncio process between many clients and one box.

Calls queue here, outside their clocks, and at most `slots` are inside the box. Invariants: every request is
answered exactly once, unless its client has gone; when the box dies, the calls inside it come back as
`sandbox_error` at once and those in the queue wait for the next box, which is started with growing pauses;
the gateway ends with its owner, and the box with the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.box import Box, BoxError, Place
from sandbox.config import Limits, SandboxConfig
from sandbox.image.server import wire
from sandbox.outcome import Status
from sandbox.workers import Workers

OWNER_LOOK_S = 0.5


@dataclass(eq=False)
class Caller:
    """A client's connection."""

    writer: asyncio.StreamWriter
    calls: dict[int, Pending] = field(default_factory=dict)  # by the client's number

    def send(self, message: wire.Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(wire.encode(message))


@dataclass(eq=False)
class Pending:
    """A call that has not been answered yet."""

    caller: Caller
    client_id: int
    request: wire.Message
    arrived_at: float
    number: int = 0  # inside the box; 0 while queued
    sent_at: float = 0.0


class Gateway:
    """Serves `endpoint`; `box` is what calls run in."""

    def __init__(
        self, config: SandboxConfig, box: Box, place: Place, endpoint: Path, owner_pid: int
    ) -> None:
        self._config = config
        self._box = box
        self._place = place
        self._endpoint = endpoint
        self._owner_pid = owner_pid
        self._queue: deque[Pending] = deque()
        self._inside: dict[int, Pending] = {}
        self._workers = Workers(config, box, place, self._on_reply, self._fill)
        self._numbers = itertools.count(1)
        self._counts: Counter[str] = Counter()
        self._stopping = asyncio.Event()

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Run until the owner ends or SIGTERM comes. BoxError if the first box does not start in time."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        stopping = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(self._watch_owner())
        keeping = asyncio.create_task(self._workers.keep())
        server: asyncio.Server | None = None
        try:
            starting = asyncio.create_task(self._workers.first.wait())
            await asyncio.wait(
                {starting, keeping, stopping},
                timeout=self._config.start_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if keeping.done():
                await keeping
            if not self._workers.first.is_set():
                raise BoxError(
                    f"the sandbox was not ready within start_timeout_s = {self._config.start_timeout_s:g} s; "
                    f"its log ends:\n{self._place.log_tail()}"
                )
            self._endpoint.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._serve_caller, str(self._endpoint))
            on_ready()
            await asyncio.wait({stopping, keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if server is not None:
                server.close()
            for task in (keeping, watching, stopping):
                task.cancel()
            await asyncio.gather(keeping, watching, stopping, return_exceptions=True)
            self._endpoint.unlink(missing_ok=True)
            await asyncio.to_thread(self._box.stop)

    async def _watch_owner(self) -> None:
        while os.getppid() == self._owner_pid:
            await asyncio.sleep(OWNER_LOOK_S)
        self._stopping.set()

    # Clients.

    async def _serve_caller(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        caller = Caller(writer)
        try:
            while True:
                header = await reader.readexactly(wire.HEADER.size)
                message = wire.decode(await reader.readexactly(wire.body_length(header)))
                self._on_request(caller, message)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (wire.WireError, ValueError, KeyError) as error:
            print(
                f"sandbox: a client was dropped: bad request: {error!r}",
                file=sys.stderr,
                flush=True,
            )
        finally:
            for pending in list(caller.calls.values()):
                self._abandon(pending)
            writer.close()

    def _on_request(self, caller: Caller, message: wire.Message) -> None:
        operation, client_id = message["op"], message["id"]
        if operation == "run":
            self._enqueue(caller, client_id, message)
        elif operation == "health":
            caller.send({"id": client_id, **self.health()})
        elif operation == "cancel" and client_id in caller.calls:
            self._abandon(caller.calls[client_id])

    def _enqueue(self, caller: Caller, client_id: int, message: wire.Message) -> None:
        limits = Limits(**{**self._config.limits.model_dump(), **message.get("limits", {})})
        request = {
            "op": "run",
            "code": message["code"],
            "stdin": message["stdin"],
            "limits": limits.model_dump(),
            "mode": message.get("mode", "script"),
            "history": message.get("history", []),
        }
        pending = Pending(caller, client_id, request, time.monotonic())
        caller.calls[client_id] = pending
        if len(self._queue) >= self._config.queue:
            self._answer(pending, {"status": Status.OVERLOADED.value})
            return
        self._queue.append(pending)
        self._fill()

    def _abandon(self, pending: Pending) -> None:
        """Nobody waits for this call any more."""
        pending.caller.calls.pop(pending.client_id, None)
        self._counts[Status.CANCELLED.value] += 1
        if pending.number:
            self._workers.cancel(pending.number)
        else:
            with contextlib.suppress(ValueError):
                self._queue.remove(pending)

    def _answer(self, pending: Pending, reply: wire.Message) -> None:
        if pending.caller.calls.pop(pending.client_id, None) is None:
            return
        self._counts[reply["status"]] += 1
        left_queue_at = pending.sent_at or time.monotonic()
        pending.caller.send(
            {
                **reply,
                "id": pending.client_id,
                "queue_s": round(left_queue_at - pending.arrived_at, 6),
                "isolation": self._box.isolation,
            }
        )

    def health(self) -> dict[str, Any]:
        """What SandboxClient.health() returns."""
        return {
            "isolation": self._box.isolation,
            "ready": self._workers.ready > 0,
            "slots": self._config.all_slots,
            "running": self._workers.running,
            "queued": len(self._queue),
            "calls": dict(self._counts),
            "restarts": self._workers.restarts,
            "missing_packages": self._workers.missing,
        }

    # The box.

    def _fill(self) -> None:
        """Send queued calls in while there is room."""
        while self._queue and self._workers.room > 0:
            pending = self._queue.popleft()
            pending.number = next(self._numbers)
            pending.sent_at = time.monotonic()
            self._inside[pending.number] = pending
            self._workers.send(pending.number, pending.request)

    def _on_reply(self, number: int, reply: wire.Message | None) -> None:
        """`reply` None: the call was lost with its worker, and its client repeats it."""
        lost = {"status": Status.SANDBOX_ERROR.value, "stderr": "the sandbox was restarted"}
        self._answer(self._inside.pop(number), lost if reply is None else reply)
