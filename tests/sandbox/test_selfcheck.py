"""Every program of the conformance suite at every level that this machine has, and a sandbox that fails it.

A level's programs run all at once, when the first of its tests asks for them. `--selfcheck-table` prints what
held (make test-sandbox).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandbox import probe
from sandbox.config import SandboxConfig
from sandbox.selfcheck.command import chosen
from sandbox.selfcheck.model import Program
from sandbox.selfcheck.programs import PROGRAMS
from sandbox.selfcheck.runner import State, Verdict, run_suite
from sandbox.selfcheck.table import table
from sandbox.service import Sandbox
from tests.sandbox.conftest import TABLES
from tests.sandbox.ordinary import served
from tests.sandbox.support import sandbox_at

AS_ORDINARY_USER = ("userns", "landlock")  # the levels that such a user has
LEVELS = [
    pytest.param("docker", marks=pytest.mark.docker),
    "ns-root",
    *(pytest.param(level, marks=pytest.mark.slow) for level in AS_ORDINARY_USER),
]
# Against a sandbox without walls: only what does no harm to the machine that it runs on.
HARMLESS = ("identity", "processes-of-others", "secrets-of-the-machine", "disk-full", "inodes-full")


@contextmanager
def place_at(level: str) -> Iterator[tuple[str, str | None]]:
    """A sandbox at `level`, as the user that the level is for: its endpoint, and its HTTP address."""
    if level not in AS_ORDINARY_USER:
        with sandbox_at(level, http="127.0.0.1:0") as sandbox:
            yield sandbox.endpoint, sandbox.http_url
        return
    if os.geteuid() != 0 and (reason := probe.obstacle(level)) is not None:
        pytest.skip(reason)
    with served(level, as_root=False) as running:
        yield running.endpoint, None


@pytest.fixture(scope="module", params=LEVELS)
def verdicts(request: pytest.FixtureRequest) -> Iterator[dict[str, Verdict]]:
    """What became of the programs that this session's tests at this level ask for."""
    level = request.param
    wanted = [
        item.callspec.params["program"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("verdicts") == level
    ]
    with place_at(level) as (endpoint, http_url):
        isolation, found = asyncio.run(run_suite(endpoint, wanted, http_url))
    assert isolation == level
    request.config.stash.setdefault(TABLES, []).append(table(isolation, found))
    return {verdict.program.name: verdict for verdict in found}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=pytest.mark.slow if program.alone else ())
        for program in PROGRAMS
    ],
)
def test_promise(program: Program, verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[program.name]
    if verdict.state is State.NOT_PROMISED:
        pytest.skip(f"not promised: {verdict.why}")
    assert verdict.state is State.HELD, f"{program.holds}: {verdict.why}"


async def test_a_sandbox_without_walls_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program that it should fail, it does; what it can keep, it keeps."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's processes are kept from most of this by the machine itself")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr("sandbox.probe.namespaces_work", lambda level: "not in this test")
    monkeypatch.setattr("sandbox.image.server.landlock.abi", lambda: 0)
    monkeypatch.setattr("sandbox.bare.uids_possible", lambda: False)
    programs = chosen([*HARMLESS, "exit-3", "output-300-kb"])
    with Sandbox.start(SandboxConfig(allow_unsafe=True, workers=1, slots=3)) as sandbox:
        isolation, found = await run_suite(sandbox.endpoint, programs, promises_of="docker")
        _, none = await run_suite(sandbox.endpoint, programs)
    assert isolation == "none"
    states = {verdict.program.name: verdict.state for verdict in found}
    assert states == {
        program.name: State.BROKEN if program.name in HARMLESS else State.HELD
        for program in programs
    }
    assert {verdict.state for verdict in none} == {State.NOT_PROMISED}
