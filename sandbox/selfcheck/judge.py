"""Does an outcome keep a program's promise? Pure; the answer is the list of what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandbox.outcome import Outcome
from sandbox.selfcheck.model import Program

GRACE_S = 5.0  # beyond the wall limit: the soft stop, the kill, and a machine that is busy
CUT_MARK = 64  # bytes of the line between head and tail
REPLACED = 3  # a byte that is no text becomes a character of this many bytes
SERVICE = re.compile(r"/opt/sandbox|\bzygote\b|\bdispatcher\b|/server/\w+\.py")
SHOWN = 160  # characters of a stream in a message


def broken(program: Program, outcome: Outcome, isolation: str) -> list[str]:
    """What does not hold of `outcome`; empty where the promise is kept."""
    return list(_complaints(program, outcome, isolation))


def _complaints(program: Program, outcome: Outcome, isolation: str) -> Iterator[str]:
    if outcome.status not in program.status:
        wanted = "/".join(program.status)
        yield f"status {outcome.status}, expected {wanted}; stderr ends {outcome.stderr[-SHOWN:]!r}"
    if outcome.isolation != isolation:
        yield f"answered at isolation {outcome.isolation}, the sandbox is at {isolation}"
    for field in ("stdout", "stderr", "exit_code", "signal", "truncated"):
        wanted, came = getattr(program, field), getattr(outcome, field)
        if wanted is not None and came != wanted:
            yield f"{field} {_short(came)}, expected {_short(wanted)}"
    for field in ("stdout", "stderr"):
        came = getattr(outcome, field)
        for part in getattr(program, f"{field}_has"):
            if part not in came:
                yield f"{field} {_short(came)} lacks {part!r}"
        size = len(came.encode("utf-8", "replace"))
        if size > REPLACED * program.limits.output_kib * 1024 + CUT_MARK:
            yield f"{field} has {size} bytes, at most {program.limits.output_kib} KiB are kept"
    text = outcome.stdout + outcome.stderr
    for part in program.lacks:
        if part in text:
            yield f"{part!r} is in the output {_short(text)}"
    if seen := SERVICE.search(text):
        yield f"the service shows: {text[max(0, seen.start() - 40) : seen.end() + 40]!r}"
    if outcome.wall_s > program.limits.wall_s + GRACE_S:
        yield f"ended after {outcome.wall_s:.1f} s, the limit is {program.limits.wall_s:g} s"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"
