"""The client: one gateway or several, over sockets and HTTP, some of them dead, dying or full."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.client import TRIP, SandboxClient, _Pool
from sandbox.config import Limits
from sandbox.errors import UserError
from sandbox.http import HttpServer
from sandbox.image.server import wire
from sandbox.links import BadRequest, Endpoint
from sandbox.outcome import Status
from sandbox.service import Sandbox
from tests.sandbox.scripted import calls_on
from tests.sandbox.support import sandbox_at
from tests.sandbox.test_gateway import boxless, health_with

FOREVER = "import time; time.sleep(600)"
PATIENT = Limits(wall_s=1200)
NOBODY = "http://127.0.0.1:9"  # the discard port


async def test_same_over_http(web: Sandbox) -> None:
    client = SandboxClient(web.http_url)
    outcomes = await asyncio.gather(*(client.run(f"print({i})") for i in range(200)))
    assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(200)]
    cell = await client.run("x + 1", mode="cell", history=["x = 1"])
    assert cell.stdout == "2\n"
    assert (await client.run("1", limits=Limits(cpu_s=1))).status is Status.OK
    with pytest.raises(BadRequest, match="scratch_mb"):
        await client.run("1", limits=Limits(scratch_mb=99))
    assert (await client.health())["slots"] == 4
    await client.close()


async def test_cancelled_call_over_http_ends(web: Sandbox) -> None:
    client = SandboxClient(web.http_url)
    task = asyncio.create_task(client.run(FOREVER, limits=PATIENT))
    await health_with(client, running=1)
    task.cancel()
    await health_with(client, running=0)
    await client.close()


async def test_closing_cancels_what_is_outstanding(web: Sandbox) -> None:
    for endpoint in (web.endpoint, web.http_url):
        client = SandboxClient(endpoint)
        task = asyncio.create_task(client.run(FOREVER, limits=PATIENT))
        await health_with(client, running=1)
        await client.close()
        assert (await task).status is Status.CANCELLED


async def test_wrong_token_is_an_error_of_the_user(tmp_path: Path) -> None:
    server = HttpServer(boxless(tmp_path), "127.0.0.1:0", "secret")
    url = f"http://{await server.start()}"
    for endpoint in (Endpoint(url), Endpoint(url, "wrong")):
        client = SandboxClient(endpoint)
        with pytest.raises(UserError, match="refused the token"):
            await client.run("1")
        await client.close()
    client = SandboxClient(Endpoint(url, "secret"))
    assert (await client.health())["ready"] is False
    await client.close()
    await server.stop()


async def test_dead_endpoints_are_passed_over(web: Sandbox, tmp_path: Path) -> None:
    client = SandboxClient([str(tmp_path / "none.sock"), NOBODY, web.http_url])
    outcomes = await asyncio.gather(*(client.run(f"print({i})") for i in range(50)))
    assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(50)]
    await client.close()


async def test_calls_survive_an_endpoint_that_dies(web: Sandbox) -> None:
    with sandbox_at("ns-root", workers=1, slots=2) as dying:
        client = SandboxClient([dying.endpoint, web.http_url])
        code = "import time; time.sleep(0.05); print({})"
        calls = [asyncio.create_task(client.run(code.format(i))) for i in range(80)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        served = await client.health()
        await asyncio.to_thread(dying.stop)
        outcomes = await asyncio.gather(*calls)
    assert served["calls"]["ok"] > 0
    assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(80)]
    assert max(outcome.attempt for outcome in outcomes) > 1
    await client.close()


async def test_full_gateway_is_left_alone(web: Sandbox) -> None:
    with sandbox_at("ns-root", workers=1, slots=1, queue=1) as small:
        filler = SandboxClient(small.endpoint)
        waiting = [asyncio.create_task(filler.run(FOREVER, limits=PATIENT)) for _ in range(2)]
        await health_with(filler, running=1, queued=1)
        client = SandboxClient([small.endpoint, web.http_url])
        outcomes = await asyncio.gather(*(client.run(f"print({i})") for i in range(30)))
        assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(30)]
        await client.close()
        await filler.close()
        await asyncio.gather(*waiting)


async def test_call_waits_for_endpoints_that_come_later(web: Sandbox, tmp_path: Path) -> None:
    client = SandboxClient(str(tmp_path / "none.sock"))
    call = asyncio.create_task(client.run("print(1)"))
    await asyncio.sleep(0.2)
    client.set_endpoints([Endpoint(web.endpoint)])
    outcome = await call
    assert (outcome.stdout, outcome.attempt > 1) == ("1\n", True)
    await client.close()


async def test_failed_call_is_tried_elsewhere(web: Sandbox, tmp_path: Path) -> None:
    broken: list[wire.Message] = []

    def answer(message: wire.Message) -> wire.Message:
        broken.append(message)
        return {"status": "sandbox_error"}

    async with calls_on(tmp_path, answer) as (_, endpoint):
        client = SandboxClient([endpoint, web.http_url])
        outcome = await client.run("print(1)")
        await client.close()
    assert (outcome.stdout, outcome.attempt, len(broken)) == ("1\n", 4, 3)


async def test_deadline_bounds_everything(tmp_path: Path) -> None:
    server = HttpServer(boxless(tmp_path), "127.0.0.1:0", None)
    url = f"http://{await server.start()}"
    for endpoint, part in ((url, "no answer within 0.3 s"), (NOBODY, NOBODY)):
        client = SandboxClient(endpoint, deadline_s=0.3)
        outcome = await client.run("1")
        assert outcome.status is Status.SANDBOX_ERROR
        assert part in outcome.stderr
        await client.close()
    await server.stop()


def test_one_client_serves_several_loops(web: Sandbox) -> None:
    client = SandboxClient(web.endpoint)
    printed: list[str] = []

    async def call() -> None:
        printed.append((await client.run("print(1)")).stdout)
        await client.close()

    threads = [threading.Thread(target=asyncio.run, args=[call()]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printed == ["1\n"] * 3


def test_no_endpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one endpoint"):
        SandboxClient([])


@given(
    outstanding=st.lists(st.integers(0, 500), min_size=3, max_size=3),
    slots=st.lists(st.integers(1, 64), min_size=3, max_size=3),
)
def test_least_loaded_is_chosen_and_the_near_one_before_a_trip(
    outstanding: list[int], slots: list[int]
) -> None:
    addresses = ["near.sock", "http://a:1", "http://b:1"]
    pool = _Pool()
    pool.follow([Endpoint(at, None, n) for at, n in zip(addresses, slots, strict=True)])
    for node, calls in zip(pool.nodes, outstanding, strict=True):
        node.outstanding = calls
    chosen = pool.choose(set())
    near, *far = pool.nodes
    least_far = min(node.outstanding / node.endpoint.slots for node in far)
    assert (chosen is near) == (near.outstanding / near.endpoint.slots <= least_far + TRIP)
    assert chosen is near or chosen.outstanding / chosen.endpoint.slots == least_far
