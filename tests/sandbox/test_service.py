"""Calls as a client makes them: many at once, given up, from several event loops."""

from __future__ import annotations

import asyncio

from sandbox.client import SandboxClient
from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.service import Sandbox


async def test_two_hundred_at_once_are_all_right(client: SandboxClient) -> None:
    outcomes = await asyncio.gather(
        *(client.run(f"print({i} * 7 + int(input()))", str(i)) for i in range(200))
    )
    assert [outcome.stdout for outcome in outcomes] == [f"{i * 8}\n" for i in range(200)]
    assert {outcome.status for outcome in outcomes} == {Status.OK}


async def test_cancelled_call_frees_its_slot(client: SandboxClient) -> None:
    sleepers = [
        asyncio.create_task(client.run("import time; time.sleep(600)", limits=Limits(wall_s=900)))
        for _ in range(6)
    ]
    while (await client.health())["running"] < 6:
        await asyncio.sleep(0.05)
    for sleeper in sleepers:
        sleeper.cancel()
    await asyncio.gather(*sleepers, return_exceptions=True)
    assert (await client.run("print(1)")).stdout == "1\n"


def test_one_client_serves_several_event_loops(sandbox: Sandbox) -> None:
    client = SandboxClient(sandbox.endpoint)

    async def once() -> str:
        outcome = await client.run("print('hello')")
        await client.close()
        return outcome.stdout

    assert [asyncio.run(once()) for _ in range(2)] == ["hello\n", "hello\n"]


async def test_health_counts_calls_by_status(client: SandboxClient, sandbox: Sandbox) -> None:
    before = await client.health()
    await client.run("1 / 0")
    after = await client.health()
    assert after["calls"]["error"] == before["calls"].get("error", 0) + 1
    assert after["isolation"] == sandbox.isolation
    assert after["missing_packages"] == []
