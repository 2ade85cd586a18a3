"""Ends what calls leave running where they share their owner's uid, so that no kill by uid can.

The process that calls this is a subreaper: whoever loses its parent below it becomes its child. So every stray is
a child of it, or will be once the strays above are dead, and repeating the kill reaches all of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

PAUSE_S = 0.0005
MOST_S = 5.0


def end(keep: Collection[int] = ()) -> None:
    """Kill and reap every descendant of this process but the children in `keep` and what is below them."""
    give_up_at = time.monotonic() + MOST_S
    while strays := [pid for pid in children(os.getpid()) if pid not in keep]:
        for pid in below(strays):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strays:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"processes {strays} are still there after {MOST_S:g} s of killing")
        time.sleep(PAUSE_S)


def children(pid: int) -> list[int]:
    """Child processes of `pid`, zombies included; none if it has gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def below(pids: list[int]) -> list[int]:
    """`pids` and all their descendants."""
    found = list(pids)
    level = pids
    while level:
        level = [child for pid in level for child in children(pid)]
        found += level
    return found
