"""Plain subprocesses: what everybody writes first. No isolation, one limit: the wall clock."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.sandboxes.backend import OnAnswer
from benchmarks.sandboxes.cgroups import Group
from benchmarks.sandboxes.children import Children
from benchmarks.sandboxes.programs import LIMIT_S, Answer, Ending, Program
from sandbox.errors import UserError

SERVER = Path(__file__).parent / "peers" / "plain_server.py"
START_S = 10.0
MAX_LINE = 64 << 20


class Plain:
    """`at_once` processes run at a time."""

    name = "plain subprocess"
    width = 1
    limit_s = LIMIT_S

    def __init__(self, programs: Path, at_once: int, shares: int) -> None:
        self._programs = programs
        self._at_once = at_once
        self._directory = Path(tempfile.mkdtemp(prefix="rstar2-bench-plain-"))
        self._group = Group("plain", shares)
        self._children = Children(self._directory, self._group)
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        path = self._directory / f"{next(self._numbers)}.sock"
        command = [
            sys.executable,
            "-I",
            str(SERVER),
            str(path),
            str(self._programs),
            str(self._at_once),
        ]
        self._children.spawn("plain", command, self._directory)
        reader, self._writer = await self._connect(path)
        self._reading = asyncio.create_task(self._read(reader))

    async def _connect(self, path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        give_up_at = time.monotonic() + START_S
        while True:
            try:
                return await asyncio.open_unix_connection(str(path), limit=MAX_LINE)
            except (FileNotFoundError, ConnectionRefusedError):  # not bound, or not listening yet
                end = self._children.ended()
            if end is not None or time.monotonic() > give_up_at:
                raise UserError(f"the server of plain subprocesses did not start: {end}")
            await asyncio.sleep(0.02)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            reply = json.loads(line)
            future = self._waiting.pop(reply["id"])
            if not future.done():
                future.set_result(reply)

    async def run(self, batch: list[Program], on_answer: OnAnswer) -> None:
        assert self._writer is not None
        for index, program in enumerate(batch):
            number = next(self._numbers)
            self._waiting[number] = asyncio.get_running_loop().create_future()
            request = {"id": number, "code": program.code, "limit_s": self.limit_s}
            self._writer.write(json.dumps(request).encode() + b"\n")
            reply = await self._waiting[number]
            if reply["timed_out"]:
                ending = Ending.TIMEOUT
            else:
                ending = Ending.OK if reply["code"] == 0 else Ending.ERROR
            on_answer(index, Answer(ending, reply["stdout"], reply["stderr"]))

    def cpu_s(self) -> float:
        return self._group.cpu_s(self._children.pids)

    async def reset(self) -> None:
        await self._end()
        await self.start()

    async def stop(self) -> None:
        await self._end()
        self._group.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        self._writer = self._reading = None
        self._waiting.clear()
        self._children.stop()
