"""The Ray side of the sandbox: one actor a node owns that node's sandbox, a directory says where they are.

The actors only own and tell: a call goes from an engine to a gateway through a socket or HTTP, never through an
actor's method. An engine takes its own node's sandbox, by its unix socket, and the others' over HTTP when
its own is dead or full; where there is one node, nothing listens at a port. All actors belong to the
driver, so the sandboxes end with the run. A host that dies is started again by Ray; its sandbox, at a new
place then, is found through the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandbox.box import BoxError
from sandbox.client import SandboxClient
from sandbox.config import Limits, SandboxConfig
from sandbox.errors import UserError
from sandbox.links import Endpoint
from sandbox.outcome import Outcome
from sandbox.service import Sandbox

REPORT_S = 2.0  # between a host's reports of its free slots
NEWS_S = 30.0  # a follower asks again at least so often
RESTART_PAUSE_S = 2.0
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """Where one node's sandbox is."""

    node: str  # name within the directory
    socket: str
    http: str | None
    token: str | None = field(repr=False)
    slots: int
    isolation: str


class SandboxDirectory:
    """Which sandboxes there are. `version` counts the changes, so that followers need not ask in vain."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._free: dict[str, tuple[int, float]] = {}  # and when that was
        self._version = 0
        self._changed = asyncio.Condition()

    async def put(self, entry: Entry) -> None:
        """A host says where its sandbox is, each time that it has started one."""
        async with self._changed:
            self._entries[entry.node] = entry
            self._version += 1
            self._changed.notify_all()

    async def knows(self, node: str) -> bool:
        return node in self._entries

    async def report(self, node: str, free: int) -> None:
        """Calls that `node` could start at once."""
        self._free[node] = (free, time.monotonic())

    async def free(self) -> dict[str, int]:
        """Of the nodes that have reported lately."""
        since = time.monotonic() - 3 * REPORT_S
        return {node: free for node, (free, at) in self._free.items() if at > since}

    async def entries(self, after: int = 0) -> tuple[int, list[Entry]]:
        """(version, entries), as soon as the version is beyond `after`, or after NEWS_S as they are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEWS_S), self._changed:
                await self._changed.wait_for(lambda: self._version > after)
        return self._version, list(self._entries.values())


class SandboxHost:
    """Owner of one node's sandbox. Started by `open()`; by itself when Ray starts the actor again."""

    def __init__(
        self, node: str, config: SandboxConfig, directory_name: str, token: str | None
    ) -> None:
        directory = ray.get_actor(directory_name)
        self._node = node
        self._config = config
        self._directory = directory
        self._token = token
        self._stopping = threading.Event()
        self.sandbox: Sandbox | None = None
        # An actor that was there before: the run counts on its sandbox to come back.
        while ray.get(directory.knows.remote(node)) and self.sandbox is None:
            try:
                self.open()
            except BoxError as error:
                log.warning("the sandbox of node %s does not start: %s", node, error)
                time.sleep(RESTART_PAUSE_S)

    def open(self) -> Entry:
        """Start the sandbox and enter it into the directory."""
        config = self._config
        if self._token is not None:
            http = f"{_bracketed(ray.util.get_node_ip_address())}:0"
            config = config.model_copy(update={"http": http})
        self.sandbox = Sandbox.start(config, http_token=self._token)
        entry = Entry(
            self._node,
            self.sandbox.endpoint,
            self.sandbox.http_url,
            self._token,
            config.all_slots,
            self.sandbox.isolation,
        )
        ray.get(self._directory.put.remote(entry))
        threading.Thread(
            target=self._report, args=[self.sandbox], name="sandbox-report", daemon=True
        ).start()
        return entry

    def calls(self) -> dict[str, int]:
        """Calls served by this sandbox, by status."""
        return {} if self.sandbox is None else dict(_health(self.sandbox)["calls"])

    def stop(self) -> None:
        self._stopping.set()
        if self.sandbox is not None:
            self.sandbox.stop()

    def _report(self, sandbox: Sandbox) -> None:
        while not self._stopping.wait(REPORT_S):
            with contextlib.suppress(OSError):  # the gateway is being started again
                health = _health(sandbox)
                free = max(0, health["slots"] - health["running"] - health["queued"])
                self._directory.report.remote(self._node, free)


class Toolbox:
    """An engine's way to the sandboxes: a client that follows the directory."""

    def __init__(self, directory: Any, node: str) -> None:
        self._directory = directory
        self._node = node
        self._client: SandboxClient | None = None
        self._starting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def run(
        self,
        code: str,
        stdin: str,
        limits: Limits,
        mode: Literal["script", "cell"] = "script",
        history: Sequence[str] = (),
    ) -> Outcome:
        client = self._client or await self._start()
        return await client.run(code, stdin, limits, mode=mode, history=history)

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        if self._client is not None:
            await self._client.close()

    async def _start(self) -> SandboxClient:
        async with self._starting:
            if self._client is None:
                version, entries = await self._directory.entries.remote()
                self._client = SandboxClient(endpoints(entries, self._node))
                self._following = asyncio.create_task(self._follow(self._client, version))
        return self._client

    async def _follow(self, client: SandboxClient, version: int) -> None:
        """Until the directory ends, which it does with the run."""
        with contextlib.suppress(RayActorError):
            while True:
                newest, entries = await self._directory.entries.remote(version)
                if newest != version:
                    client.set_endpoints(endpoints(entries, self._node))
                version = newest


class Tools:
    """The sandboxes of a cluster; `nodes` (name -> Ray node id) are all that are alive unless given."""

    def __init__(self, config: SandboxConfig, nodes: dict[str, str] | None = None) -> None:
        if nodes is None:
            nodes = {node["NodeID"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        # By name, as Ray warns of actors that restart and were given another actor at their start.
        directory = f"sandbox-directory-{secrets.token_hex(8)}"
        self.directory = ray.remote(SandboxDirectory).options(num_cpus=0, name=directory).remote()
        self.isolation = ""
        """The level at which calls run, the same on every node."""
        token = secrets.token_urlsafe(32) if len(nodes) > 1 else None
        self.hosts = {
            name: ray.remote(SandboxHost)
            .options(
                num_cpus=0,
                max_restarts=-1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(name, config, directory, token)
            for name, node in nodes.items()
        }

    async def start(self) -> None:
        """Wait for every node's sandbox. UserError if one cannot start, or if their levels differ."""
        try:
            entries = await asyncio.gather(*(host.open.remote() for host in self.hosts.values()))
        except RayTaskError as error:  # what the sandbox said, without Ray's frames around it
            await self.close()
            raise error.cause from None
        try:
            self.isolation = common_level({entry.node: entry.isolation for entry in entries})
        except UserError:
            await self.close()
            raise

    async def calls(self) -> dict[str, int]:
        """Calls served by the sandboxes that run now, by status."""
        total: Counter[str] = Counter()
        for counts in await asyncio.gather(
            *(host.calls.remote() for host in self.hosts.values()), return_exceptions=True
        ):
            if isinstance(counts, dict):
                total.update(counts)
            elif not isinstance(counts, RayActorError | RayTaskError):  # those are starting again
                raise counts
        return dict(total)

    async def close(self) -> None:
        stops = [host.stop.remote() for host in self.hosts.values()]
        await asyncio.gather(*stops, return_exceptions=True)
        for actor in (*self.hosts.values(), self.directory):
            ray.kill(actor)


def common_level(levels: dict[str, str]) -> str:
    """The isolation of all nodes (node -> level). Were it mixed, what a call could do would hang on the node
    that its rollout happened to run on."""
    if len(set(levels.values())) > 1:
        found = ", ".join(f"{level} on node {node}" for node, level in sorted(levels.items()))
        raise UserError(
            f"the nodes isolate code differently ({found}): set up the same on each, or ask with "
            "sandbox.isolation for a level that all of them have"
        )
    return next(iter(levels.values()))


def endpoints(entries: Sequence[Entry], node: str) -> list[Endpoint]:
    """What an engine on `node` connects to: its own node's socket, the others' HTTP."""
    own = [Endpoint(entry.socket, None, entry.slots) for entry in entries if entry.node == node]
    others = [
        Endpoint(entry.http, entry.token, entry.slots)
        for entry in entries
        if entry.node != node and entry.http is not None
    ]
    return own + others


def _health(sandbox: Sandbox) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        client = SandboxClient(sandbox.endpoint)
        try:
            return await client.health()
        finally:
            await client.close()

    return asyncio.run(ask())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
