"""Runs the suite against a sandbox: each program with its two innocent neighbours, many at once.

Invariants: at any time two slots are left to the neighbours, so that they really run beside; a program that
is not promised at the sandbox's level is not run (it might harm the machine); programs marked `alone` run
after all others, one by one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sandbox.client import SandboxClient
from sandbox.outcome import Outcome, Status
from sandbox.selfcheck.canary import canaries
from sandbox.selfcheck.judge import broken
from sandbox.selfcheck.model import PATIENT, Look, Program

NEIGHBOURS = 2
MOST_AT_ONCE = 32
DRAWS = 5  # runs of a program whose outputs must all differ
DEADLINE_S = 120.0  # for one call, infrastructure retries included
LOOKING_S = 60.0  # for finding every slot free once
WHERE = "\nimport os\nprint(os.environ['HOME'])"
NOTHING_PROMISED = "this level promises nothing"


class State(StrEnum):
    HELD = "held"
    BROKEN = "NOT HELD"
    NOT_PROMISED = "not promised here"


@dataclass(frozen=True)
class Verdict:
    """What became of one program. `outcome` is None where it was not run."""

    program: Program
    state: State
    why: str = ""
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Place:
    """The sandbox under test, as its health says."""

    client: SandboxClient
    endpoint: str
    isolation: str
    slots: int
    http_url: str


async def run_suite(
    endpoint: str,
    programs: Iterable[Program],
    http_url: str | None = None,
    promises_of: str | None = None,
) -> tuple[str, list[Verdict]]:
    """The sandbox's level, and the verdicts on `programs` in their order.

    They are judged by the promises of that level, or of `promises_of`, which is how the suite itself is tested.
    """
    client = SandboxClient(endpoint, deadline_s=DEADLINE_S)
    try:
        health = await client.health()
        place = Place(
            client,
            endpoint,
            str(health["isolation"]),
            int(health["slots"]),
            http_url or "",
        )
        verdicts = await _run_all(place, list(programs), promises_of or place.isolation)
        return place.isolation, verdicts
    finally:
        await client.close()


async def _run_all(place: Place, programs: list[Program], level: str) -> list[Verdict]:
    room = asyncio.Semaphore(max(1, min(place.slots - NEIGHBOURS, MOST_AT_ONCE)))

    async def in_turn(program: Program) -> Verdict:
        async with room:
            return await _try(place, program)

    verdicts: dict[str, Verdict] = {}
    for program in programs:
        reason = _not_promised(program, level)
        if reason is not None:
            verdicts[program.name] = Verdict(program, State.NOT_PROMISED, reason)
    left = [program for program in programs if program.name not in verdicts]
    together = sorted((p for p in left if not p.alone), key=lambda p: -p.limits.cpu_s)
    for verdict in await asyncio.gather(*map(in_turn, together)):
        verdicts[verdict.program.name] = verdict
    for program in left:
        if program.alone:
            verdicts[program.name] = await _try(place, program)
    return [verdicts[program.name] for program in programs]


def _not_promised(program: Program, level: str) -> str | None:
    if level == "none":
        return NOTHING_PROMISED
    return {str(name): why for name, why in program.not_on.items()}.get(level)


async def _try(place: Place, program: Program) -> Verdict:
    outcomes, complaints = await asyncio.gather(
        _outcomes(place, program), canaries(place.client, repeats=program.alone)
    )
    for outcome in outcomes:
        complaints += broken(program, outcome, place.isolation)
    if program.distinct and len({outcome.stdout for outcome in outcomes}) < len(outcomes):
        complaints.append(f"outputs repeat: {[outcome.stdout for outcome in outcomes]}")
    if program.look is not None:
        complaints += await _look_everywhere(place, program.look)
    state = State.BROKEN if complaints else State.HELD
    return Verdict(program, state, "; ".join(dict.fromkeys(complaints)), outcomes[0])


async def _outcomes(place: Place, program: Program) -> list[Outcome]:
    code = program.code.replace("@ENDPOINT@", place.endpoint).replace("@HTTP_URL@", place.http_url)
    more: dict[str, Any] = {}
    if program.mode == "cell":
        more = {"mode": program.mode, "history": list(program.history)}
    times = DRAWS if program.distinct else 1
    return await asyncio.gather(
        *(
            place.client.run(code, program.stdin, limits=program.limits, **more)
            for _ in range(times)
        )
    )


async def _look_everywhere(place: Place, look: Look) -> list[str]:
    """Run `look` until it has run in every slot; a slot is known by its scratch directory."""
    seen: set[str] = set()
    give_up_at = time.monotonic() + LOOKING_S
    while len(seen) < place.slots:
        if time.monotonic() > give_up_at:
            return [f"only {len(seen)} of {place.slots} slots could be looked into"]
        outcomes = await asyncio.gather(
            *(
                place.client.run(look.code + WHERE, limits=PATIENT)
                for _ in range(min(place.slots, MOST_AT_ONCE))  # fewer might all go to one worker
            )
        )
        for outcome in outcomes:
            found, _, where = outcome.stdout.removesuffix("\n").rpartition("\n")
            found = f"{found}\n" if found else ""
            if outcome.status is not Status.OK or found != look.stdout:
                return [
                    f"the next call saw {outcome.status} {outcome.stdout[:160]!r} {outcome.stderr[-160:]!r}, "
                    f"expected {look.stdout!r}"
                ]
            seen.add(where)
    return []
