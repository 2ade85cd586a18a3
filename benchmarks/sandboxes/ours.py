"""This project's sandbox as a user meets it: over the gateway's HTTP API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from benchmarks.sandboxes.backend import OnAnswer
from benchmarks.sandboxes.cgroups import folder_cpu_s, folder_of, tree_cpu_s
from benchmarks.sandboxes.http import session
from benchmarks.sandboxes.programs import LIMIT_S, Answer, Ending, Program
from sandbox.client import SandboxClient
from sandbox.config import Limits, SandboxConfig
from sandbox.container import LABEL, connect
from sandbox.outcome import Status
from sandbox.service import Sandbox

# The CPU clock is the limit; the wall clock is what a starved program may take.
LIMITS = Limits(cpu_s=LIMIT_S, wall_s=2 * LIMIT_S + 1)
OVERLOADED = 429  # comes with an outcome
ENDINGS = {
    Status.OK: Ending.OK,
    Status.ERROR: Ending.ERROR,
    Status.TIMEOUT: Ending.TIMEOUT,
    Status.CPU_LIMIT: Ending.TIMEOUT,
    Status.MEMORY: Ending.ERROR,
    Status.OUTPUT_LIMIT: Ending.ERROR,
    Status.SIGNAL: Ending.ERROR,
}


class Running:
    """One sandbox, shared by the backends below, and what it uses."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config.model_copy(update={"http": "127.0.0.1:0", "limits": LIMITS})
        self.sandbox: Sandbox | None = None

    def start(self) -> None:
        self.sandbox = Sandbox.start(self._config)

    def stop(self) -> None:
        if self.sandbox is not None:
            self.sandbox.stop()

    def description(self) -> dict[str, Any]:
        """Level, workers and slots, for the report."""
        assert self.sandbox is not None
        slots = self._config.slots_of_workers
        return {"isolation": self.sandbox.isolation, "workers": len(slots), "slots": sum(slots)}

    @property
    def gateway_pid(self) -> int:
        assert self.sandbox is not None
        return self.sandbox.gateway_pid

    def container(self) -> dict[str, Any] | None:
        """What the engine says of the container; None at levels without one."""
        assert self.sandbox is not None
        if self.sandbox.isolation != "docker":
            return None
        client = connect()
        try:
            for container in client.containers.list(filters={"label": LABEL}):
                if container.labels[LABEL].split()[2] == str(self.gateway_pid):
                    return dict(container.attrs)
        finally:
            client.close()
        return None

    def cpu_s(self) -> float:
        """Container and gateway."""
        container = self.container()
        if container is None:  # the box's processes are the gateway's
            return tree_cpu_s(self.gateway_pid)
        folder = folder_of(container["State"]["Pid"], "cpuacct")
        assert folder is not None
        return folder_cpu_s(folder) + tree_cpu_s(self.gateway_pid)

    def shares(self) -> int:
        """The container's CPU weight, for the peers."""
        container = self.container()
        return int(container["HostConfig"]["CpuShares"] or 1024) if container else 1024


class Ours:
    """`width` 1 asks /run, more asks /batch."""

    def __init__(self, running: Running, width: int) -> None:
        self.name = "ours /run" if width == 1 else "ours /batch"
        self.width = width
        self._running = running
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        assert self._running.sandbox is not None
        self._http = session(str(self._running.sandbox.http_url))

    async def run(self, batch: list[Program], on_answer: OnAnswer) -> None:
        assert self._http is not None
        if self.width == 1:
            async with self._http.post("/run", json={"code": batch[0].code}) as response:
                if response.status != OVERLOADED:
                    response.raise_for_status()
                on_answer(0, _answer(await response.json()))
            return
        calls = {"calls": [{"code": program.code} for program in batch]}
        async with self._http.post("/batch", json=calls) as response:
            response.raise_for_status()
            async for line in response.content:
                outcome = json.loads(line)
                on_answer(outcome["index"], _answer(outcome))

    def cpu_s(self) -> float:
        return self._running.cpu_s()

    async def reset(self) -> None:
        """Closed connections end their calls; the sandbox says when it is idle."""
        await self.stop()
        await self.start()
        assert self._http is not None
        while True:
            async with self._http.get("/health") as response:
                health = await response.json()
            if health["running"] + health["queued"] == 0:
                return
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()
        self._http = None


def _answer(outcome: dict[str, Any]) -> Answer:
    ending = ENDINGS.get(outcome["status"], Ending.FAILED)
    return Answer(ending, outcome["stdout"], outcome["stderr"])


class OursBySocket:
    """The client library over the gateway's unix socket: the way of the RL rollouts."""

    name = "ours, client library"
    width = 1

    def __init__(self, running: Running) -> None:
        self._running = running
        self._client: SandboxClient | None = None

    async def start(self) -> None:
        assert self._running.sandbox is not None
        self._client = SandboxClient(self._running.sandbox.endpoint)

    async def run(self, batch: list[Program], on_answer: OnAnswer) -> None:
        assert self._client is not None
        outcome = await self._client.run(batch[0].code)
        ending = ENDINGS.get(outcome.status, Ending.FAILED)
        on_answer(0, Answer(ending, outcome.stdout, outcome.stderr))

    def cpu_s(self) -> float:
        return self._running.cpu_s()

    async def reset(self) -> None:
        """Cancelled calls are taken back from the gateway one by one."""
        assert self._client is not None
        while (health := await self._client.health())["running"] + health["queued"] > 0:
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
        self._client = None
