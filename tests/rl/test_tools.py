"""The sandboxes of a cluster, in real Ray: two hosts on its one node stand for two nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from rl.tools import Entry, Toolbox, Tools, common_level, endpoints
from sandbox.config import Limits, SandboxConfig
from sandbox.errors import UserError
from sandbox.links import Endpoint

CONFIG = SandboxConfig.model_validate({"isolation": "ns-root", "workers": 1, "slots": 2})


def gateways() -> dict[str, psutil.Process]:
    """Gateway processes of this cluster's hosts, by the socket that they serve."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        words: list[str] = []
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie included
            words = process.cmdline()
        if "gateway" in words:
            found[f"{words[words.index('gateway') + 2]}/gateway.sock"] = process
    return found


@pytest.fixture
async def two_nodes(cluster) -> AsyncIterator[tuple[Tools, Toolbox]]:
    """Sandboxes of nodes a and b, and what an engine on a has."""
    here = ray.get_runtime_context().get_node_id()
    tools = Tools(CONFIG, {"a": here, "b": here})
    await tools.start()
    toolbox = Toolbox(tools.directory, "a")
    yield tools, toolbox
    await toolbox.close()
    await tools.close()


async def run_all(toolbox: Toolbox, numbers: range) -> list[str]:
    code = "import time; time.sleep(0.05); print({})"
    outcomes = await asyncio.gather(*(toolbox.run(code.format(i), "", Limits()) for i in numbers))
    return [outcome.stdout for outcome in outcomes]


async def entry_of(tools: Tools, node: str) -> Entry:
    _, entries = await tools.directory.entries.remote()
    return next(entry for entry in entries if entry.node == node)


async def test_nodes_stand_in_for_each_other(two_nodes) -> None:
    tools, toolbox = two_nodes
    assert tools.isolation == "ns-root"
    first = await entry_of(tools, "a")
    assert first.http is not None
    assert first.token is not None
    calls = asyncio.create_task(run_all(toolbox, range(80)))
    while sum((await tools.calls()).values()) < 10:
        await asyncio.sleep(0.05)
    # The actor of a dies with everything under it; its calls go to b, and Ray starts another.
    os.kill(gateways()[first.socket].ppid(), signal.SIGKILL)
    assert await calls == [f"{i}\n" for i in range(80)]
    while (second := await entry_of(tools, "a")) == first:
        await asyncio.sleep(0.1)
    assert second.token == first.token
    # The engine has followed: with b gone, its calls are served by the new one.
    ray.kill(tools.hosts["b"])
    assert await run_all(toolbox, range(20)) == [f"{i}\n" for i in range(20)]
    while await tools.directory.free.remote() != {"a": 2}:
        await asyncio.sleep(0.1)


async def test_one_node_opens_no_port_and_survives_its_host(cluster) -> None:
    tools = Tools(CONFIG)
    await tools.start()
    node = ray.get_runtime_context().get_node_id()
    toolbox = Toolbox(tools.directory, node)
    entry = await entry_of(tools, node)
    assert (entry.http, entry.token) == (None, None)
    gateway = gateways()[entry.socket]
    assert not [
        one for one in gateway.net_connections() if one.status == psutil.CONN_LISTEN and one.laddr
    ]
    calls = asyncio.create_task(run_all(toolbox, range(60)))
    while sum((await tools.calls()).values()) < 10:
        await asyncio.sleep(0.05)
    os.kill(gateway.ppid(), signal.SIGKILL)
    assert await calls == [f"{i}\n" for i in range(60)]
    await toolbox.close()
    await tools.close()
    assert gateways() == {}
    with contextlib.suppress(RayActorError):  # Ray's kill does not wait
        while True:
            await tools.directory.free.remote()


async def test_sandbox_that_cannot_start_says_why(cluster) -> None:
    tools = Tools(SandboxConfig(isolation="docker", image="rstar2-there-is-none:1"))
    with pytest.raises(UserError, match="docker was asked for") as caught:
        await tools.start()
    assert "ray::" not in str(caught.value)


def test_mixed_isolation_is_refused() -> None:
    assert common_level({"a": "docker", "b": "docker"}) == "docker"
    with pytest.raises(UserError, match=r"docker on node a, ns-root on node b.*sandbox\.isolation"):
        common_level({"b": "ns-root", "a": "docker"})


def test_own_socket_first_then_the_others_over_http() -> None:
    entries = [Entry(n, f"/{n}.sock", f"http://{n}:1", "secret", 4, "docker") for n in "abc"]
    assert endpoints(entries, "b") == [
        Endpoint("/b.sock", None, 4),
        Endpoint("http://a:1", "secret", 4),
        Endpoint("http://c:1", "secret", 4),
    ]
