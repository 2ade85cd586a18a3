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

BEAT_S = 1.0
SILENT_S = 20.0  # a box that has not answered a heartbeat for so long is replaced
CONNECT_PAUSE_S = 0.02
LOOK_EVERY = 25  # attempts to connect between looks whether the box still runs
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 10.0
HEALTHY_S = 30.0  # a box that lived this long resets the backoff
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
        self._numbers = itertools.count(1)
        self._counts: Counter[str] = Counter()
        self._box_writer: asyncio.StreamWriter | None = None
        self._last_answer = 0.0
        self._restarts = 0
        self._missing: list[str] = []
        self._stopping = asyncio.Event()

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Run until the owner ends or SIGTERM comes. BoxError if the first box does not start in time."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        stopping = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(self._watch_owner())
        first = asyncio.Event()
        keeping = asyncio.create_task(self._keep_box(first))
        server: asyncio.Server | None = None
        try:
            starting = asyncio.create_task(first.wait())
            await asyncio.wait(
                {starting, keeping, stopping},
                timeout=self._config.start_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if keeping.done():
                await keeping
            if not first.is_set():
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
        limits = Limits(**message["limits"]) if "limits" in message else self._config.limits
        request = {
            "op": "run",
            "code": message["code"],
            "stdin": message["stdin"],
            "limits": limits.model_dump(),
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
        if pending.number and self._box_writer is not None:
            self._box_writer.write(wire.encode({"op": "cancel", "id": pending.number}))
        elif not pending.number:
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
            "ready": self._box_writer is not None,
            "slots": self._config.slots,
            "running": len(self._inside),
            "queued": len(self._queue),
            "calls": dict(self._counts),
            "restarts": self._restarts,
            "missing_packages": self._missing,
        }

    # The box.

    def _fill(self) -> None:
        """Send queued calls in while there is room."""
        while (
            self._queue and self._box_writer is not None and len(self._inside) < self._config.slots
        ):
            pending = self._queue.popleft()
            pending.number = next(self._numbers)
            pending.sent_at = time.monotonic()
            self._inside[pending.number] = pending
            self._box_writer.write(wire.encode({**pending.request, "id": pending.number}))

    async def _keep_box(self, first: asyncio.Event) -> None:
        """Start a box, live with it until it dies, start the next one."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            started_at = time.monotonic()
            try:
                await asyncio.to_thread(self._box.start)
                await self._live_with_box(first)
            except (
                BoxError,
                OSError,
                ValueError,
                wire.WireError,
                asyncio.IncompleteReadError,
            ) as error:
                if not first.is_set():
                    raise (
                        error if isinstance(error, BoxError) else self._start_error(error)
                    ) from error
                print(
                    f"sandbox: {error}; its log ends:\n{self._place.log_tail()}",
                    file=sys.stderr,
                    flush=True,
                )
            finally:
                self._lose_box()
            await asyncio.to_thread(self._box.stop)
            lived_s = time.monotonic() - started_at
            backoff_s = (
                FIRST_BACKOFF_S if lived_s > HEALTHY_S else min(LONGEST_BACKOFF_S, backoff_s * 2)
            )
            self._restarts += 1
            await asyncio.sleep(backoff_s)

    def _start_error(self, error: Exception) -> BoxError:
        return BoxError(
            f"the sandbox did not start: {error}; its log ends:\n{self._place.log_tail()}"
        )

    async def _live_with_box(self, first: asyncio.Event) -> None:
        reader, writer = await self._connect()
        beating = asyncio.create_task(self._beat(writer))
        try:
            while True:
                header = await reader.readexactly(wire.HEADER.size)
                self._on_box_message(
                    wire.decode(await reader.readexactly(wire.body_length(header))), writer, first
                )
        finally:
            beating.cancel()
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        give_up_at = time.monotonic() + self._config.start_timeout_s
        for attempt in itertools.count(1):
            try:
                return await asyncio.open_unix_connection(str(self._place.socket))
            except OSError:
                if time.monotonic() > give_up_at:
                    raise
            if attempt % LOOK_EVERY == 0 and not await asyncio.to_thread(self._box.running):
                raise BoxError(f"the {self._box.isolation} sandbox ended while it started")
            await asyncio.sleep(CONNECT_PAUSE_S)
        raise AssertionError("unreachable")

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        """Renew the lease; drop a box that no longer answers."""
        self._last_answer = time.monotonic()
        while time.monotonic() - self._last_answer < SILENT_S:
            writer.write(wire.encode({"op": "beat"}))
            await asyncio.sleep(BEAT_S)
        print(
            f"sandbox: no sign of life for {SILENT_S:g} s, it is replaced",
            file=sys.stderr,
            flush=True,
        )
        writer.transport.abort()

    def _on_box_message(
        self, message: wire.Message, writer: asyncio.StreamWriter, first: asyncio.Event
    ) -> None:
        self._last_answer = time.monotonic()
        if message.get("op") == "ready":
            self._missing = message["missing"]
            if self._missing and not first.is_set():
                print(
                    f"sandbox: programs cannot import {', '.join(self._missing)}",
                    file=sys.stderr,
                    flush=True,
                )
            self._box_writer = writer
            first.set()
        elif "status" in message:
            pending = self._inside.pop(message["id"])
            self._answer(pending, message)
        self._fill()

    def _lose_box(self) -> None:
        """Give the calls that were inside back to their clients, which repeat them."""
        self._box_writer = None
        lost, self._inside = list(self._inside.values()), {}
        for pending in lost:
            self._answer(
                pending,
                {"status": Status.SANDBOX_ERROR.value, "stderr": "the sandbox was restarted"},
            )
