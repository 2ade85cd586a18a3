"""The two innocent programs that run beside each program of the suite, with answers that only they can know."""

from __future__ import annotations

import asyncio
import secrets

from sandbox.client import SandboxClient
from sandbox.outcome import Outcome, Status
from sandbox.selfcheck.model import PATIENT


async def canaries(client: SandboxClient, repeats: bool) -> list[str]:
    """Run both; what is wrong with their answers. `repeats`: they may have been lost to the program and repeated."""
    outcomes = await asyncio.gather(_print(client), _numpy(client))
    found = [complaint for _, complaint in outcomes if complaint is not None]
    attempts = max(outcome.attempt for outcome, _ in outcomes)
    if attempts > 1 and not repeats:
        found.append(f"an innocent neighbour was right only at attempt {attempts}")
    return found


async def _print(client: SandboxClient) -> tuple[Outcome, str | None]:
    word, number = f"innocent-{secrets.token_hex(8)}", secrets.randbelow(10**9)
    code = f"word = {word!r}\nprint(word, {number} * 7 + int(input()))"
    return await _expect(client, code, "5\n", f"{word} {number * 7 + 5}\n")


async def _numpy(client: SandboxClient) -> tuple[Outcome, str | None]:
    word, number = f"innocent-{secrets.token_hex(8)}", secrets.randbelow(10**4)
    code = (
        f"import numpy\nword = {word!r}\nopen('kept', 'w').write(word)\n"
        f"print(open('kept').read() == word, int(numpy.arange({number} + 1).sum()))"
    )
    return await _expect(client, code, "", f"True {number * (number + 1) // 2}\n")


async def _expect(
    client: SandboxClient, code: str, stdin: str, answer: str
) -> tuple[Outcome, str | None]:
    outcome = await client.run(code, stdin, limits=PATIENT)
    if outcome.status is Status.OK and outcome.stdout == answer:
        return outcome, None
    return outcome, (
        f"an innocent neighbour got {outcome.status} {outcome.stdout[:80]!r} {outcome.stderr[-160:]!r}, "
        f"expected {answer!r}"
    )
