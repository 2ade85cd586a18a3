"""A box that does what a test says: how a broken one behaves cannot be had from one that works.

It speaks the dispatchers' protocol on their sockets; everything before it is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.box import Place
from sandbox.calls import Calls
from sandbox.config import SandboxConfig
from sandbox.frames import FrameServer
from sandbox.image.server import wire

Answer = Callable[[wire.Message], wire.Message | None]


class ScriptedBox:
    """`answer` gives the reply to each request; None: the connection is cut instead."""

    isolation = "none"

    def __init__(self, config: SandboxConfig, place: Place, answer: Answer) -> None:
        self._place = place
        self._answer = answer
        self._workers = len(config.slots_of_workers)
        self._listeners: list[socket.socket] = []

    def start(self) -> None:
        self._place.directory.mkdir(exist_ok=True)
        for index in range(self._workers):
            path = self._place.socket(index)
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(os.fspath(path))
            listener.listen()
            self._listeners.append(listener)
            threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def running(self) -> bool:
        return bool(self._listeners)

    def stop(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners = []

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[peer], daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        decoder = wire.Decoder()
        with peer, contextlib.suppress(OSError):
            peer.sendall(wire.encode({"op": "ready", "missing": []}))
            while data := peer.recv(1 << 16):
                for message in decoder.feed(data):
                    if message["op"] == "beat":
                        peer.sendall(wire.encode({"op": "beat"}))
                    if message["op"] != "run":
                        continue
                    reply = self._answer(message)
                    if reply is None:
                        return
                    peer.sendall(wire.encode({**reply, "id": message["id"]}))


@asynccontextmanager
async def calls_on(
    directory: Path, answer: Answer, **settings: object
) -> AsyncIterator[tuple[Calls, str]]:
    """Calls over a ScriptedBox, and the socket that they are served at."""
    config = SandboxConfig.model_validate({"workers": 1, "slots": 2, **settings})
    place = Place(directory / "box")
    box = ScriptedBox(config, place, answer)
    calls = Calls(config, box, place)
    keeping = asyncio.create_task(calls.workers.keep())
    server = FrameServer(calls, directory / "gateway.sock")
    await server.start()
    await calls.workers.first.wait()
    try:
        yield calls, str(directory / "gateway.sock")
    finally:
        await server.stop()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        box.stop()
