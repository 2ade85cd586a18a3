"""code-judge's way of working: HTTP front, Redis queue, workers that start one fresh interpreter a call.

The real one where the user points to a checkout, else the stand-in of `peers/`, which says so in its name.
Both get a front process a core and the same number of workers, a limit of LIMIT_S, and a queue that never
gives up on a call (code-judge drops what waited 4 s by default, and the benchmark queues longer than that).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.sandboxes import redis_server
from benchmarks.sandboxes.backend import OnAnswer
from benchmarks.sandboxes.cgroups import Group
from benchmarks.sandboxes.children import Children
from benchmarks.sandboxes.http import session
from benchmarks.sandboxes.programs import LIMIT_S, Answer, Ending, Program

PEERS = Path(__file__).parent / "peers"
MEMORY_MB = 1024
QUEUE_WAIT_S = 600
WARM_CONNECTIONS = 1000
FRONTS = os.cpu_count() or 1


class Judge:
    """`width` 1 asks /run, more asks /run/long-batch."""

    def __init__(
        self,
        checkout: Path | None,
        service: Path,
        programs: Path,
        workers: int,
        width: int,
        shares: int,
    ) -> None:
        self.name = "code-judge" if checkout else "code-judge stand-in"
        self.width = width
        self._checkout = checkout
        self._service = service
        self._programs = programs
        self._workers = workers
        self._directory = Path(tempfile.mkdtemp(prefix="rstar2-bench-judge-"))
        self._group = Group(f"judge{width}", shares)
        self._children = Children(self._directory, self._group)
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        program = redis_server.ensure_program(self._directory)
        uri = redis_server.start(self._children, program, self._directory)
        port = redis_server.free_port()
        cwd = self._checkout or PEERS
        front, worker = (
            ("app.main:app", "run_workers.py")
            if self._checkout
            else ("queue_front:app", "queue_worker.py")
        )
        env = self._environment(uri)
        uvicorn = [
            "-m",
            "uvicorn",
            front,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-access-log",
        ]
        uvicorn += ["--log-level", "warning", "--workers", str(FRONTS)]
        self._children.spawn("worker", [str(self._service), worker], cwd, env)
        self._children.spawn("front", [str(self._service), *uvicorn], cwd, env)
        redis_server.wait_for_port(port, self._children, 30.0)
        self._http = session(f"http://127.0.0.1:{port}")
        await self._settle()

    def _environment(self, redis_uri: str) -> dict[str, str]:
        own = {
            "LIMIT_S": f"{LIMIT_S:.0f}",
            "MEMORY_MB": str(MEMORY_MB),
            "WORKERS": str(self._workers),
        }
        theirs = {
            "MAX_EXECUTION_TIME": f"{LIMIT_S:.0f}",
            "MAX_MEMORY": str(MEMORY_MB),
            "MAX_WORKERS": str(self._workers),
            "MAX_QUEUE_WORK_LIFE_TIME": str(QUEUE_WAIT_S),
            "PYTHON_EXECUTOR_PATH": str(self._programs),
        }
        return {
            "REDIS_URI": redis_uri,
            "PROGRAM_PYTHON": str(self._programs),
            "PYTHONDONTWRITEBYTECODE": "1",
            **own,
            **theirs,
        }

    async def _settle(self) -> None:
        assert self._http is not None
        async with self._http.post(
            "/run", json={"type": "python", "solution": "print(1)"}
        ) as response:
            text = await response.text()
            response.raise_for_status()
            assert '"run_success":true' in text, text
        # A front opens a connection to Redis for each waiting call; that is not part of any call's time.
        await asyncio.gather(*(self._status() for _ in range(WARM_CONNECTIONS)))

    async def _status(self) -> None:
        assert self._http is not None
        async with self._http.get("/status") as response:
            await response.read()

    async def run(self, batch: list[Program], on_answer: OnAnswer) -> None:
        assert self._http is not None
        submissions = [{"type": "python", "solution": program.code} for program in batch]
        if self.width == 1:
            async with self._http.post("/run", json=submissions[0]) as response:
                response.raise_for_status()
                on_answer(0, _answer(await response.json()))
            return
        request = {"type": "batch", "submissions": submissions}
        async with self._http.post("/run/long-batch", json=request) as response:
            response.raise_for_status()
            for index, result in enumerate((await response.json())["results"]):
                on_answer(index, _answer(result))

    def cpu_s(self) -> float:
        return self._group.cpu_s(self._children.pids)

    async def reset(self) -> None:
        """Its queue keeps what a lost client asked for, so everything is started anew."""
        await self._end()
        await self.start()

    async def stop(self) -> None:
        await self._end()
        self._group.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _end(self) -> None:
        if self._http is not None:
            await self._http.close()
        self._http = None
        self._children.stop()


def _answer(result: dict[str, Any]) -> Answer:
    reason = result.get("reason", "")
    texts = {"stdout": result.get("stdout") or "", "stderr": result.get("stderr") or ""}
    if reason == "worker_timeout":
        return Answer(Ending.TIMEOUT, **texts)
    if reason:
        return Answer(Ending.FAILED, stderr=reason)
    return Answer(Ending.OK if result["run_success"] else Ending.ERROR, **texts)
