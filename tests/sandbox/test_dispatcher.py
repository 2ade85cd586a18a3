"""What the inside of the box does with its processes, its memory and its files."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox.box import LOG
from sandbox.client import SandboxClient
from sandbox.config import Limits, SandboxConfig
from sandbox.image.server.imports import RANKS, TIERS, tier_for
from sandbox.outcome import Outcome, Status
from sandbox.selfcheck.programs.residue import OF_MY_UID
from sandbox.service import Sandbox
from tests.sandbox.support import QUICK, children_of, containers_of, dispatchers_of, sandbox_at

HOG = """
import os, time
for _ in range(24):
    if os.fork() == 0:
        held = bytearray(b"x" * (60 << 20))
        time.sleep(60)
time.sleep(60)
"""
INNOCENT = "import time\nheld = bytearray(b'x' * (40 << 20))\ntime.sleep(0.5)\nprint({})"


@pytest.mark.parametrize(
    ("code", "tier"),
    [
        ("print(2 + 2)", "std"),
        ("import math, re\nfrom collections import Counter", "std"),
        ("import math, numpy as np", "num"),
        ("def f():\n    from numpy.linalg import det", "num"),
        ("from math import *; import sympy", "sym"),
        ("try: import mpmath\nexcept ImportError: pass", "sym"),
        ("import numpy\nimport sympy.abc", "sym"),
        ("import sympy\nfrom scipy import stats", "full"),
        ("print('numpy and sympy')\nnumpy = 1", "std"),
        ("important = numpy\nnumpyish = 2  # imports sympy", "std"),
        ("import numpyro", "std"),
    ],
)
def test_tier_goes_by_import_statements(code: str, tier: str) -> None:
    assert tier_for(code) == tier


@given(st.lists(st.sampled_from([*RANKS, "math", "os"]), min_size=1))
def test_tier_is_the_smallest_that_has_everything(names: list[str]) -> None:
    wanted = max(RANKS.get(name, 0) for name in names)
    assert tier_for(f"import {', '.join(names)}") == list(TIERS)[wanted]
    assert tier_for("\n".join(f"from {name} import x" for name in names)) == list(TIERS)[wanted]


def test_slots_are_shared_out_over_the_workers() -> None:
    assert SandboxConfig(workers=3, slots=7).slots_of_workers == [3, 2, 2]
    assert SandboxConfig(workers=4, slots=2).slots_of_workers == [1, 1]
    assert SandboxConfig(workers=2).slots_of_workers == [3, 3]


def test_total_memory_holds_one_process() -> None:
    with pytest.raises(ValidationError, match=r"total_memory_mb = 1024.*memory_mb = 2048"):
        Limits(memory_mb=2048)


async def test_memory_of_all_processes_together_is_bounded(client: SandboxClient) -> None:
    outcome = await client.run(HOG, limits=Limits(wall_s=50, total_memory_mb=512))
    assert outcome.status is Status.MEMORY
    assert (await client.run("print(1)")).stdout == "1\n"


async def test_cpu_of_all_processes_together_is_bounded(client: SandboxClient) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    outcome = await client.run(code, limits=Limits(cpu_s=2, wall_s=100))
    assert outcome.status is Status.CPU_LIMIT
    assert 2 <= outcome.cpu_s < 16


async def test_stray_that_is_its_own_reaper_is_found(client: SandboxClient) -> None:
    code = """
import ctypes, os, time
libc = ctypes.CDLL(None)
CLONE_PARENT, SIGCHLD, PR_SET_CHILD_SUBREAPER = 0x8000, 17, 36
if os.fork() == 0:
    os.setsid()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(1, 0, 0, 0, 0)
    for _ in range(3):
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
    time.sleep(600)
if libc.syscall(56 if os.uname().machine == "x86_64" else 220, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) == 0:
    time.sleep(600)
print("done")
"""
    outcome = await client.run(code, limits=QUICK)
    assert (outcome.status, outcome.stdout) == (Status.OK, "done\n")
    for _ in range(8):
        assert (await client.run(OF_MY_UID)).stdout == "0\n"


async def test_calls_are_unlike_each_other_in_what_they_draw(client: SandboxClient) -> None:
    code = "import random, numpy\nprint(random.random(), numpy.random.rand(), numpy.random.randn())"
    drawn = [(await client.run(code)).stdout.split() for _ in range(4)]
    assert all(len(set(column)) == 4 for column in zip(*drawn, strict=True))


def zygotes_of(sandbox: Sandbox) -> set[int]:
    """Of an idle sandbox."""
    return {child for pid in dispatchers_of(sandbox) for child in children_of(pid)}


def held_by(sandbox: Sandbox) -> list[set[str]]:
    """What the descriptors of each dispatcher lead to, kinds only."""
    return [
        {
            str(fd.readlink()).rstrip("]0123456789") + fd.name
            for fd in Path(f"/proc/{pid}/fd").iterdir()
        }
        for pid in dispatchers_of(sandbox)
    ]


async def test_dispatcher_keeps_nothing_of_ended_calls() -> None:
    with sandbox_at("ns-root", slots=3, workers=1) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        await client.run("import scipy")  # waits for the last fork server to start
        before = held_by(sandbox)
        codes = [
            "print('x' * 300_000)",
            "1 / 0",
            "import os; os.kill(os.getpid(), 9)",
            "print(input())",
        ]
        calls = [client.run(codes[i % 4], "y" * (i % 2), limits=QUICK) for i in range(200)]
        endless = [
            asyncio.create_task(client.run("while True: print('x')", limits=QUICK))
            for _ in range(8)
        ]
        await asyncio.gather(*calls)
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        while (await client.health())["running"]:
            await asyncio.sleep(0.05)
        assert held_by(sandbox) == before
        await client.close()


async def test_fork_servers_are_replaced_without_a_trace() -> None:
    with sandbox_at("ns-root", slots=4, workers=1, recycle_after=30) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        await client.run("import scipy")  # waits for the last fork server to start
        first = zygotes_of(sandbox)
        number = 0
        while len(first & zygotes_of(sandbox)) == len(first):
            outcomes = await asyncio.gather(*(client.run(f"print({number})") for _ in range(40)))
            assert {(o.stdout, o.attempt) for o in outcomes} == {(f"{number}\n", 1)}
            number += 1
        await client.close()


@pytest.mark.slow
async def test_fork_server_that_hangs_is_replaced() -> None:
    with sandbox_at("ns-root", slots=2, workers=1) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        await client.run("import scipy")  # waits for the last fork server to start
        for pid in zygotes_of(sandbox):
            os.kill(pid, signal.SIGSTOP)
        outcomes = await asyncio.gather(*(client.run(f"print({i})") for i in range(8)))
        assert [outcome.stdout for outcome in outcomes] == [f"{i}\n" for i in range(8)]
        assert (await client.health())["lost_workers"] == 0
        await client.close()


@pytest.mark.docker
async def test_exhausted_container_gives_no_wrong_verdict() -> None:
    def right(number: int, outcome: Outcome) -> bool:
        return outcome.stdout == f"{number}\n" and outcome.status is Status.OK

    with sandbox_at("docker", slots=4, workers=1) as sandbox:
        client = SandboxClient(sandbox.endpoint)
        (container,) = containers_of(sandbox.gateway_pid)
        await client.run("import scipy")  # waits for the last fork server to start
        small = 700 << 20  # the fork servers and all calls but the hog fit into it
        container.update(mem_limit=small, memswap_limit=small)
        hog = asyncio.create_task(client.run(HOG, limits=Limits(wall_s=4, total_memory_mb=2048)))
        await asyncio.sleep(0.5)
        outcomes = await asyncio.gather(
            *(client.run(INNOCENT.format(i), limits=Limits(wall_s=60)) for i in range(9))
        )
        assert (await hog).status in (Status.MEMORY, Status.TIMEOUT)
        wrong = [o for i, o in enumerate(outcomes) if not right(i, o)]
        assert {o.status for o in wrong} <= {Status.OOM_VICTIM, Status.SANDBOX_ERROR}, wrong
        log = Path(sandbox.endpoint).parent / "box" / LOG
        assert "for memory" in log.read_text()
        health = await client.health()
        assert (health["restarts"], health["lost_workers"]) == (0, 0)
        await client.close()
