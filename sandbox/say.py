"""The sandbox's log: few lines on standard error, each a whole sentence about something that happened."""

from __future__ import annotations

import sys
import time

REPEAT_S = 60.0
_said_at: dict[str, float] = {}


def say(text: str) -> None:
    print(f"sandbox: {text}", file=sys.stderr, flush=True)


def say_seldom(kind: str, text: str) -> None:
    """As `say`, once in REPEAT_S for each `kind`: for what happens to thousands of calls at a time."""
    if time.monotonic() - _said_at.get(kind, -REPEAT_S) >= REPEAT_S:
        _said_at[kind] = time.monotonic()
        say(text)
