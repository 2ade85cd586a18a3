"""Running the demo's programs in the sandbox, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from sandbox.client import SandboxClient
from sandbox.config import SandboxConfig
from sandbox.errors import InfrastructureError
from sandbox.outcome import Outcome
from sandbox.service import Sandbox

OUTSTANDING = 64  # calls at once; the sandbox queues what it cannot run
SAY_EVERY = 500


def run_programs(
    codes: Collection[str], config: SandboxConfig, done: Callable[[int], None]
) -> tuple[dict[str, Outcome], str]:
    """What each program came to, and the isolation that they ran under."""
    with Sandbox.start(config) as sandbox:
        return asyncio.run(_run_all(codes, sandbox.endpoint, done)), sandbox.isolation


async def _run_all(
    codes: Collection[str], endpoint: str, done: Callable[[int], None]
) -> dict[str, Outcome]:
    client = SandboxClient(endpoint)
    outcomes: dict[str, Outcome] = {}
    waiting = iter(codes)

    async def worker() -> None:
        for code in waiting:
            outcome = await client.run(code)
            if outcome.status.infrastructure:
                raise InfrastructureError(
                    f"sandbox: {outcome.status} for the program {code!r}: {outcome.stderr}"
                )
            outcomes[code] = outcome
            if len(outcomes) % SAY_EVERY == 0:
                done(len(outcomes))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(OUTSTANDING, len(codes))):
            group.create_task(worker())
    await client.close()
    return outcomes
