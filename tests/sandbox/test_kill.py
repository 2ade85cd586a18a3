"""Whatever dies under load, in the Docker sandbox or around it: no call is lost, none is wrong, nothing stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docker.models.containers import Container

from sandbox.box import BoxError
from sandbox.build import ensure_image
from sandbox.client import SandboxClient
from sandbox.config import Limits, SandboxConfig
from sandbox.container import connect
from sandbox.outcome import Status
from sandbox.service import Sandbox
from tests.sandbox.engine import Engine, eventually, processes
from tests.sandbox.load import Load
from tests.sandbox.support import containers_of, need, sandbox_at

pytestmark = [pytest.mark.docker, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
LEASE_S = 12.0  # a killed owner's container is gone within


@contextmanager
def docker_sandbox(**settings: object) -> Iterator[Sandbox]:
    """A sandbox of which nothing may be left once it has stopped."""
    with sandbox_at("docker", http="127.0.0.1:0", workers=2, slots=6, **settings) as sandbox:
        uids = uids_of(container_of(sandbox))
        first_gateway = sandbox.gateway_pid
        yield sandbox
        last_gateway = sandbox.gateway_pid
        eventually(lambda: containers_of(first_gateway) == [] or first_gateway == last_gateway)
        assert len(containers_of(last_gateway)) == 1
    eventually(lambda: containers_of(first_gateway) + containers_of(last_gateway) == [])
    eventually(lambda: processes(lambda pid: uid_of(pid) in uids) == [])


def container_of(sandbox: Sandbox) -> Container:
    (container,) = containers_of(sandbox.gateway_pid)
    return container


def uids_of(container: Container) -> range:
    """All that its calls and dispatchers may have."""
    settings = json.loads(container.attrs["Config"]["Cmd"][-1])
    base, slots = settings["uid_base"], settings["slots"]
    return range(base, base + sum(slots) + len(slots))


def uid_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def parts(container: Container, module: str) -> list[int]:
    """Pids, on this machine, of the container's services that run `module`, without the calls forked by them."""
    assert container.id is not None

    def is_one(pid: int) -> bool:
        try:
            group = Path(f"/proc/{pid}/cgroup").read_text()
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            uid = Path(f"/proc/{pid}/status").read_text().partition("\nUid:")[2].split()[1]
        except OSError:
            return False
        return container.id in group and module.encode() in line and uid == "0"

    return processes(is_one)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
@pytest.mark.parametrize("module", ["server.zygote", "server.dispatcher"])
async def test_service_process_lost(module: str, number: signal.Signals) -> None:
    with docker_sandbox() as sandbox:
        load = Load(sandbox)
        load.start()
        await load.reach(0.1)
        container = container_of(sandbox)
        victims = parts(container, module)
        assert victims
        os.kill(victims[0], number)
        await load.check()
        assert container_of(sandbox).id == container.id, "one part died, the container stays"
        assert victims[0] not in parts(container, module)


async def test_every_service_process_lost_one_after_the_other() -> None:
    with docker_sandbox() as sandbox:
        load = Load(sandbox, calls=300)
        load.start()
        for share in (0.1, 0.3, 0.5):
            await load.reach(share)
            for module in ("server.zygote", "server.dispatcher"):
                for victim in parts(container_of(sandbox), module):
                    os.kill(victim, signal.SIGKILL)
        await load.check()


async def test_container_killed() -> None:
    with docker_sandbox() as sandbox:
        load = Load(sandbox)
        load.start()
        await load.reach(0.2)
        first = container_of(sandbox)
        await asyncio.to_thread(first.kill)
        await load.check()
        assert container_of(sandbox).id != first.id


async def test_gateway_killed() -> None:
    with docker_sandbox() as sandbox:
        load = Load(sandbox)
        load.start()
        await load.reach(0.2)
        first = sandbox.gateway_pid
        os.kill(first, signal.SIGKILL)
        await load.check()
        assert sandbox.gateway_pid != first


async def test_gateway_stopped_for_a_while() -> None:
    """Its container ends with the lease; the calls go to the next one."""
    with docker_sandbox() as sandbox:
        load = Load(sandbox)
        load.start()
        await load.reach(0.2)
        os.kill(sandbox.gateway_pid, signal.SIGSTOP)
        await asyncio.sleep(LEASE_S)
        os.kill(sandbox.gateway_pid, signal.SIGCONT)
        await load.check()


def test_owner_killed_under_load() -> None:
    need("docker")
    config = {"isolation": "docker", "workers": 2, "slots": 6}
    owner = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "serve", "--config", json.dumps(config)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert owner.stdout is not None
    endpoint = json.loads(owner.stdout.readline())["endpoint"]
    gateways = [
        int(pid) for pid in Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
    ]
    containers = [one for gateway in gateways for one in containers_of(gateway)]
    assert len(containers) == 1
    uids = uids_of(containers[0])

    async def load() -> None:
        client = SandboxClient(endpoint, deadline_s=5)
        forking = "import os, time\nos.setsid() if os.fork() == 0 else 0\ntime.sleep(600)"
        calls = [
            asyncio.create_task(client.run(forking, limits=Limits(wall_s=900))) for _ in range(50)
        ]
        while (await client.health())["running"] < 6:
            await asyncio.sleep(0.05)
        owner.kill()
        owner.wait()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await client.close()

    asyncio.run(load())
    eventually(lambda: [one for gateway in gateways for one in containers_of(gateway)] == [])
    eventually(lambda: processes(lambda pid: uid_of(pid) in uids or pid in gateways) == [])
    eventually(lambda: not Path(endpoint).exists())


async def test_memory_of_the_container_exhausted() -> None:
    """By one call that may have more than the container has: it fails, the others have their answers."""
    hog = "hoard = []\nwhile True: hoard.append(bytearray(b'x' * (8 << 20)))"
    limits = Limits(cpu_s=20, wall_s=60, memory_mb=65536, total_memory_mb=65536)
    with docker_sandbox(limits=Limits(memory_mb=64, total_memory_mb=64, scratch_mb=8)) as sandbox:
        load = Load(sandbox)
        load.start()
        client = SandboxClient(sandbox.endpoint)
        await load.reach(0.1)
        outcome = await client.run(hog, limits=limits)
        await client.close()
        assert outcome.status is Status.MEMORY, outcome
        await load.check()


async def test_memory_exhausted_by_many_processes_and_files() -> None:
    hog = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        hoard = bytearray(b"x" * (200 << 20))
        time.sleep(60)
kept = [os.memfd_create("hoard") for _ in range(60)]
while True:
    for fd in kept:
        os.write(fd, bytes(1 << 20))
"""
    limits = Limits(cpu_s=20, wall_s=20, memory_mb=65536, total_memory_mb=65536)
    with docker_sandbox(limits=Limits(memory_mb=64, total_memory_mb=64, scratch_mb=8)) as sandbox:
        load = Load(sandbox)
        load.start()
        client = SandboxClient(sandbox.endpoint)
        await load.reach(0.1)
        outcome = await client.run(hog, limits=limits)
        await client.close()
        assert outcome.status is not Status.OK, outcome
        await load.check()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    need("docker")
    if os.geteuid() != 0:
        pytest.skip("only root can start a Docker engine")
    image = ensure_image(connect(), SandboxConfig().image)
    with tempfile.TemporaryDirectory(prefix="rstar2-engine-") as place:
        own = Engine(Path(place))
        own.start()
        try:
            saved = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
            command = ["docker", "--host", own.host, "load", "--quiet"]
            subprocess.run(command, stdin=saved.stdout, check=True, capture_output=True)
            assert saved.wait() == 0
            yield own
        finally:
            own.stop()


@pytest.mark.timeout(400)
async def test_engine_killed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container lives on without its engine; the engine ends it when it comes back."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    with docker_sandbox() as sandbox:
        load = Load(sandbox)
        load.start()
        await load.reach(0.1)
        engine.kill()
        try:
            await load.reach(0.4)
        finally:
            await asyncio.to_thread(engine.start)
        await load.check()


@pytest.mark.timeout(400)
async def test_engine_and_container_killed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait for the engine to come back."""
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    with docker_sandbox() as sandbox:
        load = Load(sandbox)
        load.start()
        await load.reach(0.1)
        first = container_of(sandbox)
        pid = first.attrs["State"]["Pid"]
        engine.kill()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BoxError):
            connect(1)
        await asyncio.sleep(3)
        await asyncio.to_thread(engine.start)
        await load.check()
        assert container_of(sandbox).id != first.id
