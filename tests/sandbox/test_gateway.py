"""The queue before the box: refusals, retries, deadlines, canaries, and clients that vanish."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from sandbox.box import Place
from sandbox.calls import Calls
from sandbox.canary import LOST_IN_A_ROW, Canaries
from sandbox.client import REPEATS_OF_FAILED, SandboxClient
from sandbox.config import Limits, SandboxConfig
from sandbox.image.server import wire
from sandbox.links import BadRequest
from sandbox.namespace import NamespaceBox
from sandbox.outcome import Status
from sandbox.request import CallRequest
from sandbox.service import Sandbox
from tests.sandbox.scripted import calls_on
from tests.sandbox.support import children_of, sandbox_at

FOREVER = "import time; time.sleep(600)"
PATIENT = Limits(wall_s=1200)


def boxless(directory: Path, **settings: object) -> Calls:
    """Calls before a box that never starts: whatever is submitted waits."""
    config = SandboxConfig.model_validate({"workers": 1, "slots": 2, **settings})
    place = Place(directory)
    return Calls(config, NamespaceBox(config, place, "ns-root"), place)


def submit(calls: Calls, request: CallRequest) -> list[wire.Message]:
    """Where the reply will be."""
    replies: list[wire.Message] = []
    calls.submit(request, replies.append)
    return replies


async def health_with(client: SandboxClient, **values: int) -> None:
    """Wait until the gateway's health shows `values`."""
    while True:
        health = await client.health()
        if all(health[name] == value for name, value in values.items()):
            return
        await asyncio.sleep(0.02)


@pytest.fixture
async def link(web: Sandbox) -> AsyncIterator[SandboxClient]:
    client = SandboxClient(web.endpoint)
    yield client
    await client.close()


async def test_queue_is_bounded_in_calls(tmp_path: Path) -> None:
    calls = boxless(tmp_path, queue=2)
    request = CallRequest(code="print(1)")
    assert submit(calls, request) == submit(calls, request) == []
    (refused,) = submit(calls, request)
    assert refused["status"] == "overloaded"
    assert refused["retry_after_s"] > 0
    assert "full" in refused["stderr"]


async def test_queue_is_bounded_in_bytes(tmp_path: Path) -> None:
    calls = boxless(tmp_path, queue_mb=1)
    assert submit(calls, CallRequest(code="#" * (3 << 20))) == []  # alone, any call may wait
    (refused,) = submit(calls, CallRequest(code="", stdin="x"))
    assert refused["status"] == "overloaded"


async def test_abandoned_calls_make_room(tmp_path: Path) -> None:
    calls = boxless(tmp_path, queue=1)
    answers: list[wire.Message] = []
    first = calls.submit(CallRequest(code="1"), answers.append)
    calls.abandon(first)
    calls.abandon(first)
    assert submit(calls, CallRequest(code="2")) == []
    assert calls.health()["queued"] == 1
    assert calls.health()["calls"] == {"cancelled": 1}
    assert answers == []


async def test_retry_after_grows_with_the_queue(tmp_path: Path) -> None:
    calls = boxless(tmp_path, queue=5000)
    least = calls.retry_after_s
    for _ in range(4000):
        submit(calls, CallRequest(code="1"))
    assert calls.retry_after_s > least


async def test_deadline_ends_the_wait(tmp_path: Path) -> None:
    calls = boxless(tmp_path)
    replies = submit(calls, CallRequest(code="1", deadline_s=0.01))
    while not replies:
        await asyncio.sleep(0.01)
    assert replies[0]["status"] == "overloaded"
    assert "deadline_s" in replies[0]["stderr"]
    assert calls.health()["queued"] == 0


async def test_deadline_ends_what_runs(web: Sandbox, link: SandboxClient) -> None:
    async with aiohttp.ClientSession(web.http_url) as session:
        body = {"code": FOREVER, "limits": {"wall_s": 1200}, "deadline_s": 0.3}
        async with session.post("/run", json=body) as response:
            reply = await response.json()
    assert (reply["status"], reply["stderr"]) == ("cancelled", "deadline_s passed while it ran")
    await health_with(link, running=0)


async def test_lost_connection_ends_its_calls(web: Sandbox, link: SandboxClient) -> None:
    _, writer = await asyncio.open_unix_connection(web.endpoint)
    for number in range(10):
        frame = {"op": "run", "id": number, "code": FOREVER, "limits": {"wall_s": 1200}}
        writer.write(wire.encode(frame))
    await health_with(link, running=4, queued=6)
    writer.transport.abort()
    await health_with(link, running=0, queued=0)


async def test_cancelled_call_ends(link: SandboxClient) -> None:
    task = asyncio.create_task(link.run(FOREVER, limits=PATIENT))
    await health_with(link, running=1)
    task.cancel()
    await health_with(link, running=0)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"code": 1}, "code: expected a string"),
        ({}, "code: Field required"),
        ({"code": "1", "limits": {"cpu_s": 0}}, "limits.cpu_s"),
        ({"code": "1", "limits": {"scratch_mb": 33}}, "limits.scratch_mb"),
        ({"code": "1", "mode": "notebook"}, "mode"),
        ({"code": "1", "history": ["2"]}, "history: only mode 'cell'"),
        ({"code": "1", "colour": "red"}, "colour"),
        ({"code": "1" * (17 << 20)}, "at most 16777216"),
    ],
)
async def test_bad_request_is_answered_and_names_its_field(
    web: Sandbox, fields: dict, part: str
) -> None:
    reader, writer = await asyncio.open_unix_connection(web.endpoint, limit=1 << 20)
    writer.write(wire.encode({"op": "run", "id": 7, **fields}))
    length = wire.body_length(await reader.readexactly(wire.HEADER.size))
    reply = wire.decode(await reader.readexactly(length))
    assert reply["id"] == 7
    assert part in reply["error"]
    writer.close()


async def test_bad_frame_costs_only_its_sender(web: Sandbox, link: SandboxClient) -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", wire.encode({"op": "run"}), b"\0\0\0\2[]"):
        reader, writer = await asyncio.open_unix_connection(web.endpoint)
        writer.write(garbage)
        assert await reader.read() == b""
        writer.close()
    assert (await link.run("print(1)")).stdout == "1\n"


async def test_bad_request_raises_in_the_client(link: SandboxClient) -> None:
    with pytest.raises(BadRequest, match="scratch_mb"):
        await link.run("1", limits=Limits(scratch_mb=99))


async def test_lone_surrogates_pass(link: SandboxClient) -> None:
    outcome = await link.run("print(ascii(input()))", "\ud800")
    assert outcome.status is Status.OK


async def test_call_lost_with_its_worker_is_repeated_by_the_gateway() -> None:
    with sandbox_at("ns-root", workers=1, slots=1, http="127.0.0.1:0") as sandbox:
        async with aiohttp.ClientSession(sandbox.http_url) as session:
            body = {"code": "import time; time.sleep(1); print('through')"}
            call = asyncio.create_task(session.post("/run", json=body))
            client = SandboxClient(sandbox.endpoint)
            await health_with(client, running=1)
            (unshare,) = children_of(sandbox.gateway_pid)
            os.kill(unshare, signal.SIGKILL)
            reply = await (await call).json()
            await client.close()
    assert (reply["status"], reply["stdout"], reply["attempt"]) == ("ok", "through\n", 2)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (None, Status.SANDBOX_ERROR),
        ({"status": "sandbox_error"}, Status.SANDBOX_ERROR),
        ({"status": "cancelled"}, Status.SANDBOX_ERROR),
        # Whoever meets the OOM killer each time is its cause, not its victim.
        ({"status": "oom_victim", "stdout": "so far"}, Status.MEMORY),
    ],
)
async def test_retries_end(tmp_path: Path, reply: wire.Message | None, status: Status) -> None:
    async with calls_on(tmp_path, lambda message: reply) as (calls, _):
        replies = submit(calls, CallRequest(code="1"))
        while not replies:
            await asyncio.sleep(0.01)
        assert replies[0]["status"] == status
        assert replies[0]["attempt"] == 3
        assert b"sandbox_retries_total{" in calls.exposition()


async def test_innocent_victims_come_through(tmp_path: Path) -> None:
    runs = count(1)

    def answer(message: wire.Message) -> wire.Message:
        if next(runs) < 3:
            return {"status": "oom_victim"}
        return {"status": "ok", "stdout": "4\n", "wall_s": 0.1, "cpu_s": 0.1}

    async with calls_on(tmp_path, answer) as (_, endpoint):
        client = SandboxClient(endpoint)
        outcome = await client.run("print(2 + 2)")
        await client.close()
    assert (outcome.status, outcome.stdout, outcome.attempt) == (Status.OK, "4\n", 3)


async def test_program_that_breaks_every_worker_is_given_up(tmp_path: Path) -> None:
    async with calls_on(tmp_path, lambda message: None) as (_, endpoint):
        client = SandboxClient(endpoint)
        outcome = await client.run("1")
        await client.close()
    assert outcome.status is Status.SANDBOX_ERROR
    assert outcome.attempt == 3 * REPEATS_OF_FAILED


def right_answer(message: wire.Message) -> wire.Message:
    total = sum(map(int, message["stdin"].split()))
    return {"status": "ok", "stdout": f"{total}\n", "wall_s": 0.0, "cpu_s": 0.0}


@pytest.mark.parametrize(
    ("answer", "result", "replaced"),
    [
        (right_answer, "right", False),
        (lambda message: {"status": "ok", "stdout": "4\n"}, "wrong", True),
        (lambda message: {"status": "error", "stderr": "no module"}, "wrong", True),
        (lambda message: {"status": "timeout"}, "slow", False),
        (lambda message: {"status": "sandbox_error"}, "lost", True),
    ],
)
async def test_canaries(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    answer: object,
    result: str,
    replaced: bool,
) -> None:
    async with calls_on(tmp_path, answer) as (calls, _):
        watching = asyncio.create_task(Canaries(calls, every_s=0.01).keep())
        wanted = f'sandbox_canaries_total{{result="{result}"}} {LOST_IN_A_ROW}.0'.encode()
        while wanted not in calls.exposition():
            await asyncio.sleep(0.01)
        while replaced and not calls.health()["lost_workers"]:
            await asyncio.sleep(0.01)
        watching.cancel()
        assert calls.health()["calls"] == {}  # nobody's calls
    assert ("is replaced" in capfd.readouterr().err) == replaced


async def test_canary_jumps_the_queue(tmp_path: Path) -> None:
    order: list[str] = []

    def answer(message: wire.Message) -> wire.Message:
        order.append(message["code"])
        return right_answer(message)

    async with calls_on(tmp_path, answer, slots=1) as (calls, _):
        replies = [submit(calls, CallRequest(code=f"# {i}", stdin="1")) for i in range(20)]
        await calls.ask(0, CallRequest(code="canary", stdin="1"), 10)
        while not all(replies):
            await asyncio.sleep(0.01)
    assert "canary" in order[:3]
    assert len(order) == 21
