"""The gateway: one asyncio process between many clients and one box.

Clients come over a unix socket and, where it is configured, over HTTP; behind both is one queue (calls.py).
Invariants: the gateway ends with its owner, and the box with the gateway; a box that dies is replaced,
with growing pauses, while its calls wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from sandbox.box import Box, BoxError, Place
from sandbox.calls import Calls
from sandbox.canary import Canaries
from sandbox.config import SandboxConfig
from sandbox.frames import FrameServer
from sandbox.http import HttpServer, read_token

OWNER_LOOK_S = 0.5

OnReady = Callable[[str | None], None]


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
        self._stopping = asyncio.Event()

    async def serve(self, on_ready: OnReady) -> None:
        """Run until the owner ends or SIGTERM comes; `on_ready` gets HOST:PORT of the HTTP side, if any.
        BoxError if the first box does not start in time."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        calls = Calls(self._config, self._box, self._place)
        stopping = asyncio.create_task(self._stopping.wait())
        keeping = asyncio.create_task(calls.workers.keep())
        tasks = [stopping, keeping, asyncio.create_task(self._watch_owner())]
        frames = FrameServer(calls, self._endpoint)
        http: HttpServer | None = None
        try:
            if self._config.http is not None:
                token_file = self._config.http_token_file
                token = None if token_file is None else read_token(token_file)
                http = HttpServer(calls, self._config.http, token)
            await self._first_box(calls, keeping, stopping)
            http_at = None if http is None else await http.start()
            await frames.start()
            tasks.append(asyncio.create_task(Canaries(calls).keep()))
            on_ready(http_at)
            await asyncio.wait(set(tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await frames.stop()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            if http is not None:
                await http.stop()
            await asyncio.to_thread(self._box.stop)
        for result in ended:  # nothing but the end of the owner is a reason to end
            if isinstance(result, Exception):
                raise result

    async def _first_box(
        self, calls: Calls, keeping: asyncio.Task[None], stopping: asyncio.Task[bool]
    ) -> None:
        starting = asyncio.create_task(calls.workers.first.wait())
        await asyncio.wait(
            {starting, keeping, stopping},
            timeout=self._config.start_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        starting.cancel()
        if keeping.done():
            await keeping
        if not calls.workers.first.is_set():
            raise BoxError(
                f"the sandbox was not ready within start_timeout_s = {self._config.start_timeout_s:g} s; "
                f"its log ends:\n{self._place.log_tail()}"
            )

    async def _watch_owner(self) -> None:
        while os.getppid() == self._owner_pid:
            await asyncio.sleep(OWNER_LOOK_S)
        self._stopping.set()
