"""The gateway's socket: frames of wire.py, many calls at once over each connection.

A client's connection is its word that it still waits: when it is lost, its calls are ended.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sandbox.calls import Calls, Pending
from sandbox.image.server import wire
from sandbox.request import BadCall, CallRequest, complaint
from sandbox.say import say

BACKLOG = 1024


class Caller:
    """One client's connection."""

    def __init__(self, calls: Calls, writer: asyncio.StreamWriter) -> None:
        self._calls = calls
        self._writer = writer
        self._pending: dict[int, Pending] = {}  # by the client's number

    def on_message(self, message: wire.Message) -> None:
        operation, number = message.pop("op", None), message.pop("id", None)
        if not isinstance(number, int):
            raise wire.WireError(f"expected an integer id, got {number!r}")
        if operation == "run":
            self._run(number, message)
        elif operation == "health":
            self._send(number, self._calls.health())
        elif operation == "cancel" and number in self._pending:
            self._calls.abandon(self._pending.pop(number))

    def gone(self) -> None:
        for pending in self._pending.values():
            self._calls.abandon(pending)
        self._pending.clear()
        self._writer.close()

    def _run(self, number: int, fields: dict[str, Any]) -> None:
        if number in self._pending:
            raise wire.WireError(f"call {number} came again before it was answered")
        try:
            request = CallRequest.model_validate(fields)
            pending = self._calls.submit(request, lambda reply: self._answer(number, reply))
        except ValidationError as error:
            self._send(number, {"error": complaint(error)})
        except BadCall as error:
            self._send(number, {"error": str(error)})
        else:
            if not pending.done:
                self._pending[number] = pending

    def _answer(self, number: int, reply: wire.Message) -> None:
        self._pending.pop(number, None)
        self._send(number, reply)

    def _send(self, number: int, reply: wire.Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(wire.encode({**reply, "id": number}))


class FrameServer:
    """Serves `calls` at a unix socket."""

    def __init__(self, calls: Calls, path: Path) -> None:
        self._calls = calls
        self._path = path
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; a socket that a dead gateway left is replaced."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(
            self._accept, str(self._path), backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Cut all connections; the clients repeat their calls elsewhere, or later."""
        if self._server is None:
            return
        self._server.close()
        self._path.unlink(missing_ok=True)
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*self._open.values())

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._open[writer] = serving
        serving.add_done_callback(lambda _: self._open.pop(writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(self._calls, writer)
        try:
            while True:
                header = await reader.readexactly(wire.HEADER.size)
                caller.on_message(wire.decode(await reader.readexactly(wire.body_length(header))))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (wire.WireError, ValueError) as error:
            say(f"a client was dropped: bad frame: {error!r}")
        finally:
            caller.gone()
