from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from sandbox.client import SandboxClient
from sandbox.service import Sandbox
from tests.sandbox.support import sandbox_at

TABLES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--selfcheck-table", action="store_true", help="print what held of the conformance suite"
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("selfcheck_table", default=False):
        return
    for text in config.stash.get(TABLES, []):
        terminalreporter.section("conformance")
        terminalreporter.write_line(text)


@pytest.fixture(
    scope="session", params=[pytest.param("docker", marks=pytest.mark.docker), "ns-root"]
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One sandbox a level for all tests that leave it as they found it."""
    with sandbox_at(request.param) as running:
        yield running


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[SandboxClient]:
    connected = SandboxClient(sandbox.endpoint)
    yield connected
    await connected.close()


@pytest.fixture(scope="session")
def web() -> Iterator[Sandbox]:
    """One sandbox with HTTP, at the level that starts fastest, for tests of what stands before the box."""
    limits = {"cpu_s": 1}
    with sandbox_at("ns-root", workers=2, slots=4, http="127.0.0.1:0", limits=limits) as running:
        yield running
