"""What happens when a part of the sandbox dies, and what is left when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.box import BoxError
from sandbox.build import image_name
from sandbox.client import SandboxClient
from sandbox.config import Limits, SandboxConfig
from sandbox.container import LABEL, connect, remove_strays
from sandbox.errors import UserError
from sandbox.image.server.tree import real_uid
from sandbox.outcome import Status
from sandbox.owner import label as owner_label
from sandbox.probe import resolve
from sandbox.service import Sandbox
from tests.sandbox.support import children_of, containers_of, dispatchers_of, need, sandbox_at

LEVELS = [pytest.param("docker", marks=pytest.mark.docker), "ns-root"]
ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], within_s: float) -> bool:
    give_up_at = time.monotonic() + within_s
    while time.monotonic() < give_up_at:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def serve(level: str) -> tuple[subprocess.Popen[str], str]:
    """An owner process of its own, and its endpoint."""
    config = json.dumps({"isolation": level, "slots": 2})
    owner = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "serve", "--config", config],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert owner.stdout is not None
    return owner, json.loads(owner.stdout.readline())["endpoint"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ended_owner_leaves_nothing(level: str, number: signal.Signals) -> None:
    need(level)
    owner, endpoint = serve(level)
    gateway = children_of(owner.pid)
    assert len(gateway) == 1
    inside = children_of(gateway[0])
    if level == "docker":
        assert len(containers_of(gateway[0])) == 1
    owner.send_signal(number)
    owner.wait()
    assert eventually(lambda: not any(map(alive, [*gateway, *inside])), 15)
    if level == "docker":
        assert eventually(lambda: containers_of(gateway[0]) == [], 15)
    assert eventually(lambda: not Path(endpoint).parent.exists(), 15)


@pytest.mark.docker
def test_container_outlives_a_killed_gateway_by_its_lease_only() -> None:
    need("docker")
    owner, _ = serve("docker")
    (gateway,) = children_of(owner.pid)
    owner.kill()  # first, so that nobody starts the gateway again
    os.kill(gateway, signal.SIGKILL)
    owner.wait()
    assert len(containers_of(gateway)) == 1
    assert eventually(lambda: containers_of(gateway) == [], 15)


@pytest.mark.docker
async def test_calls_survive_a_killed_container() -> None:
    with sandbox_at("docker", slots=4) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        code = "import time; time.sleep(0.05); print({})"
        calls = [
            asyncio.create_task(client.run(code.format(i), limits=Limits(wall_s=60)))
            for i in range(120)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        (container,) = containers_of(sandbox.gateway_pid)
        await asyncio.to_thread(container.kill)
        outcomes = await asyncio.gather(*calls)
        assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(120)]
        assert max(outcome.attempt for outcome in outcomes) > 1
        assert (await client.health())["restarts"] == 1
        await client.close()


async def test_calls_survive_a_killed_gateway() -> None:
    with sandbox_at("ns-root", slots=2) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        calls = [
            asyncio.create_task(client.run(f"import time; time.sleep(0.05); print({i})"))
            for i in range(40)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        os.kill(sandbox.gateway_pid, signal.SIGKILL)
        outcomes = await asyncio.gather(*calls)
        assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(40)]
        await client.close()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
async def test_lost_dispatcher_comes_back_alone(number: signal.Signals) -> None:
    with sandbox_at("ns-root", slots=4, workers=2) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        victim, other = sorted(dispatchers_of(sandbox))
        calls = [
            asyncio.create_task(client.run(f"import time; time.sleep(0.05); print({i})"))
            for i in range(80)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        os.kill(victim, number)
        outcomes = await asyncio.gather(*calls)
        assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(80)]
        assert eventually(lambda: len(dispatchers_of(sandbox)) == 2, 30)
        assert other in dispatchers_of(sandbox)
        assert victim not in dispatchers_of(sandbox)
        assert (await client.health())["restarts"] == 0
        await client.close()


async def test_calls_survive_killed_zygotes() -> None:
    with sandbox_at("ns-root", slots=2) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        calls = [
            asyncio.create_task(client.run(f"import time; time.sleep(0.05); print({i})"))
            for i in range(40)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        children = [child for one in dispatchers_of(sandbox) for child in children_of(one)]
        for child in children:
            if real_uid(child) == 0:  # the others are calls
                os.kill(child, signal.SIGKILL)
        outcomes = await asyncio.gather(*calls)
        assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(40)]
        assert (await client.health())["restarts"] == 0
        await client.close()


async def test_full_queue_says_overloaded() -> None:
    with sandbox_at("ns-root", slots=1, queue=2) as sandbox:
        patient, hasty = (
            SandboxClient(sandbox.endpoint),
            SandboxClient(sandbox.endpoint, deadline_s=3),
        )
        code, limits = "import time; time.sleep(600)", Limits(wall_s=1200)
        waiting = [asyncio.create_task(patient.run(code, limits=limits)) for _ in range(3)]
        while (await patient.health())["queued"] < 2:
            await asyncio.sleep(0.05)
        outcome = await hasty.run("print(1)")
        assert outcome.status is Status.OVERLOADED
        assert outcome.attempt > 1
        await hasty.close()
        await patient.close()
        assert {one.status for one in await asyncio.gather(*waiting)} == {Status.CANCELLED}


async def test_nobody_at_the_endpoint_is_no_failure_of_the_program(tmp_path: Path) -> None:
    outcome = await SandboxClient(str(tmp_path / "none.sock"), deadline_s=0.3).run("print(1)")
    assert outcome.status is Status.SANDBOX_ERROR
    assert "none.sock" in outcome.stderr


@pytest.mark.docker
def test_strays_of_dead_owners_are_removed() -> None:
    with sandbox_at("docker", slots=1) as sandbox:
        client = connect()
        (own,) = containers_of(sandbox.gateway_pid)
        boot, namespace, _, started = own.labels[LABEL].split()
        dead = subprocess.Popen(["true"])
        dead.wait()
        image = image_name(SandboxConfig().image)
        stray = client.containers.create(
            image, ["true"], labels={LABEL: f"{boot} {namespace} {dead.pid} {started}"}
        )
        assert remove_strays(client) == 1
        left = {
            container.id for container in client.containers.list(all=True, filters={"label": LABEL})
        }
        assert stray.id not in left
        assert own.id in left


def test_directories_of_dead_owners_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    need("ns-root")
    ended = subprocess.Popen(["true"])
    ended.wait()
    boot, namespace, _, started = owner_label(os.getpid()).split()
    owners = {
        "dead": f"{boot} {namespace} {ended.pid} {started}",
        "elsewhere": f"another-boot {namespace} {ended.pid} {started}",
    }
    with tempfile.TemporaryDirectory() as short:  # a socket's path must be
        monkeypatch.setattr("tempfile.tempdir", short)
        for name, owner in owners.items():
            (Path(short) / f"rstar2-sandbox-{name}").mkdir()
            (Path(short) / f"rstar2-sandbox-{name}" / "owner").write_text(owner)
        with Sandbox.start(SandboxConfig(isolation="ns-root", slots=1)):
            left = {path.name for path in Path(short).glob("rstar2-sandbox-*")}
    assert "rstar2-sandbox-dead" not in left
    assert "rstar2-sandbox-elsewhere" in left
    assert len(left) == 2


def test_docker_is_never_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(UserError, match=r"docker was asked for.*engine\.sh"):
        resolve(SandboxConfig(isolation="docker"))


def test_fallback_is_loud(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    need("ns-root")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with Sandbox.start(SandboxConfig(slots=1)) as sandbox:
        assert sandbox.isolation == "ns-root"
    assert "WARNING: code runs at isolation level ns-root, not in Docker" in capfd.readouterr().err


def test_nothing_at_all_is_refused_unless_allowed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sandbox.image.server.landlock.abi", lambda: 0)
    with pytest.raises(UserError, match="allow_unsafe"):
        resolve(SandboxConfig())
    assert resolve(SandboxConfig(allow_unsafe=True)) == "none"
    assert "UNPROTECTED" in capfd.readouterr().err


async def test_unprotected_level_still_limits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr("sandbox.probe.namespaces_work", lambda level: "not in this test")
    monkeypatch.setattr("sandbox.image.server.landlock.abi", lambda: 0)
    with Sandbox.start(SandboxConfig(allow_unsafe=True, slots=2)) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        right, slow = await asyncio.gather(
            client.run("print(2 + 2)"),
            client.run("import time; time.sleep(600)", limits=Limits(wall_s=1)),
        )
        await client.close()
    assert (right.stdout, right.isolation) == ("4\n", "none")
    assert slow.status is Status.TIMEOUT


def test_start_that_takes_too_long_is_an_error_with_the_log() -> None:
    need("ns-root")
    with pytest.raises(BoxError, match=r"start_timeout_s = 0\.01"):
        Sandbox.start(SandboxConfig(isolation="ns-root", start_timeout_s=0.01))
