from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from sandbox.client import SandboxClient
from sandbox.service import Sandbox
from tests.sandbox.support import sandbox_at


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
