"""The gateway's socket: frames of wire.py, many calls at once over each connection.

A client's connection is its word that it still waits: when it is lost, its calls are ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import ValidationError

from sandbox.calls import Calls, Pending
from sandbox.image.server import wire
from sandbox.request import BadCall, CallRequest, complaint
from sandbox.say import say


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


async def serve_caller(
    calls: Calls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one connection until it ends."""
    caller = Caller(calls, writer)
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
