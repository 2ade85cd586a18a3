"""The Ray side of the sandbox: one actor a node owns that node's sandbox.

The actor only owns: calls go from an engine to its node's gateway through a socket, never through actor
methods. The actors belong to the driver, so the sandboxes end with the run.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandbox.client import SandboxClient
from sandbox.config import SandboxConfig
from sandbox.service import Sandbox


class SandboxHost:
    """Owner of one node's sandbox."""

    def __init__(self, config: SandboxConfig) -> None:
        self.sandbox = Sandbox.start(config)

    def where(self) -> tuple[str, str]:
        """(endpoint, isolation)."""
        return self.sandbox.endpoint, self.sandbox.isolation

    async def health(self) -> dict[str, Any]:
        client = SandboxClient(self.sandbox.endpoint)
        try:
            return await client.health()
        finally:
            await client.close()

    def stop(self) -> None:
        self.sandbox.stop()


class Tools:
    """The sandboxes of a cluster."""

    def __init__(self, config: SandboxConfig) -> None:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        self.hosts = {
            node: ray.remote(SandboxHost)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote(config)
            for node in nodes
        }
        self.endpoints: dict[str, str] = {}
        self.isolation = ""

    async def start(self) -> None:
        """Wait for every node's sandbox."""
        for node, host in self.hosts.items():
            self.endpoints[node], self.isolation = await host.where.remote()

    async def calls(self) -> dict[str, int]:
        """Calls served so far, by status, over all nodes."""
        total: Counter[str] = Counter()
        for host in self.hosts.values():
            total.update((await host.health.remote())["calls"])
        return dict(total)

    async def close(self) -> None:
        for host in self.hosts.values():
            await host.stop.remote()
            ray.kill(host)
