"""Client of the sandbox: `outcome = await client.run(code, stdin, limits)`.

All calls of an event loop share one connection and are told apart by a number, so thousands may be
outstanding; each loop gets a connection of its own, so one client may be used from any of them. Calls are
pure (no state between them), hence safe to repeat: an infrastructure status or a lost connection is
retried with jitter until `deadline_s` has passed, and only then returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sandbox.config import Limits
from sandbox.image.server import wire
from sandbox.outcome import Outcome, Status

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
MAX_INPUT = 16 << 20  # bytes of code and standard input together
OWN_FAULT_ATTEMPTS = (
    3  # a program that meets the OOM killer this often is its cause, not its victim
)


class SandboxClient:
    """Runs programs through the gateway at `endpoint` (path of a unix socket, or host:port)."""

    def __init__(self, endpoint: str, deadline_s: float = 300.0) -> None:
        self.endpoint = endpoint
        self.deadline_s = deadline_s
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, _Link] = WeakKeyDictionary()

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        mode: Literal["script", "cell"] = "script",
        history: Sequence[str] = (),
    ) -> Outcome:
        """Run `code` as a program of its own, or as a cell after those of `history`; what `limits` leave
        out is as the sandbox was configured."""
        size = len(code) + len(stdin) + sum(map(len, history))
        if size > MAX_INPUT:
            raise ValueError(
                f"code and stdin have {size} characters together with their history, at most {MAX_INPUT} are allowed"
            )
        request: wire.Message = {"op": "run", "code": code, "stdin": stdin}
        if mode != "script":
            request |= {"mode": mode, "history": list(history)}
        if limits is not None:
            request["limits"] = limits.model_dump(exclude_unset=True)
        give_up_at = time.monotonic() + self.deadline_s
        for attempt in itertools.count(1):
            outcome = replace(await self._attempt(request, give_up_at), attempt=attempt)
            if outcome.status is Status.OOM_VICTIM and attempt >= OWN_FAULT_ATTEMPTS:
                return replace(outcome, status=Status.MEMORY)
            if outcome.status is Status.CANCELLED:  # only this client cancels its calls
                return outcome
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 16)) * random.uniform(
                0.5, 1.0
            )
            if not outcome.status.infrastructure or time.monotonic() + pause_s > give_up_at:
                return outcome
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def health(self) -> dict[str, Any]:
        """What the gateway says of itself: isolation, calls by status, running, queued."""
        reply = await self._link().request({"op": "health"})
        reply.pop("id")
        return reply

    async def close(self) -> None:
        """Close this event loop's connection; calls still outstanding come back as cancelled."""
        link = self._links.pop(asyncio.get_running_loop(), None)
        if link is not None:
            await link.close()

    def _link(self) -> _Link:
        loop = asyncio.get_running_loop()
        if loop not in self._links:
            self._links[loop] = _Link(self.endpoint)
        return self._links[loop]

    async def _attempt(self, request: wire.Message, give_up_at: float) -> Outcome:
        remaining_s = max(0.0, give_up_at - time.monotonic())
        try:
            reply = await asyncio.wait_for(self._link().request(request), remaining_s)
        except TimeoutError:
            return Outcome(Status.SANDBOX_ERROR, stderr=f"no answer within {self.deadline_s:g} s")
        except OSError as error:
            return Outcome(Status.SANDBOX_ERROR, stderr=f"sandbox at {self.endpoint}: {error}")
        return Outcome.from_reply(reply)


class _Link:
    """One connection, opened when first needed and again after it broke."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[wire.Message]] = {}
        self._opening = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None

    async def request(self, message: wire.Message) -> wire.Message:
        """Send `message` and wait for the reply with its number."""
        async with self._opening:
            if self._writer is None:
                await self._open()
        writer = self._writer
        if writer is None:
            raise ConnectionError("connection lost")
        number = next(self._numbers)
        future: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            writer.write(wire.encode({**message, "id": number}))
            await writer.drain()
            return await future
        finally:
            self._waiting.pop(number, None)
            if future.cancelled() and message["op"] == "run":
                writer.write(wire.encode({"op": "cancel", "id": number}))

    async def close(self) -> None:
        if self._reader_task is not None:
            self._reader_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader_task
        if self._writer is not None:
            self._writer.close()
        for number, future in self._waiting.items():
            if not future.done():
                future.set_result(
                    {"id": number, "status": Status.CANCELLED.value, "stderr": "client closed"}
                )

    async def _open(self) -> None:
        host, colon, port = self._endpoint.rpartition(":")
        if colon and port.isdigit() and "/" not in host:
            reader, writer = await asyncio.open_connection(host, int(port))
        else:
            reader, writer = await asyncio.open_unix_connection(self._endpoint)
        self._writer = writer
        self._reader_task = asyncio.create_task(self._read(reader, writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand each reply to its waiter; when the connection ends, fail whoever still waits."""
        reason = "connection closed by the gateway"
        try:
            while True:
                header = await reader.readexactly(wire.HEADER.size)
                reply = wire.decode(await reader.readexactly(wire.body_length(header)))
                future = self._waiting.get(reply["id"])
                if future is not None and not future.done():
                    future.set_result(reply)
        except (asyncio.IncompleteReadError, OSError, wire.WireError) as error:
            reason = f"{reason} ({error})"
        finally:
            writer.close()
            self._writer = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError(reason))
