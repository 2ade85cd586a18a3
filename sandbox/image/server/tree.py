"""What processes of a call there are, and what they use, as /proc tells it.

The dispatcher is the parent of each call's first process and, as the subreaper, of every orphan that a call makes.
So a process that outlived its call is a child of the dispatcher, or below one that is; looking at those few
instead of at all processes is what makes the look cheap enough for every call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .strays import children

KIB = 1 << 10
TICKS = os.sysconf("SC_CLK_TCK")


class OwnChildren:
    """The children of this process, which must have one thread."""

    def __init__(self) -> None:
        self._fd = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)

    def pids(self) -> set[int]:
        """Zombies included."""
        data = b""
        while piece := os.pread(self._fd, 1 << 16, len(data)):
            data += piece
        return set(map(int, data.split()))


@dataclass
class Usage:
    """Of all processes of a call together."""

    memory: int = 0  # bytes
    cpu_s: float = 0.0
    processes: int = 0


def usage_below(roots: list[int], uid: int | None, inherited: int) -> Usage:
    """What `roots` and everything below them use. `inherited` bytes of a process that was forked and never became
    another program are its zygote's, not its own. Where the call has a uid, exec is what makes it the owner."""
    usage = Usage()
    left = list(roots)
    while left:
        pid = left.pop()
        try:
            times = _stat(pid)[11:15]
            left += children(pid)
            forked = uid is None or os.stat(f"/proc/{pid}").st_uid != uid
        except OSError:
            continue
        usage.processes += 1
        usage.cpu_s += sum(map(int, times)) / TICKS
        usage.memory += max(0, own_memory(pid) - (inherited if forked else 0))
    return usage


def own_memory(pid: int) -> int:
    """Bytes that the process has in use beside files, those it shares with forks included; 0 if it has gone."""
    return sum(_status(pid, name) or 0 for name in (b"RssAnon", b"RssShmem")) * KIB


def real_uid(pid: int) -> int | None:
    """None if the process has gone."""
    return _status(pid, b"Uid")


def _status(pid: int, name: bytes) -> int | None:
    """The first number of a line of /proc/PID/status; None if there is none, as for a process that has gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        return None
    words = text.partition(b"\n" + name + b":")[2].split(maxsplit=1)
    return int(words[0]) if words else None


def any_of(uid: int) -> bool:
    """Is there any process of that uid (a zombie counts)?"""
    return any(real_uid(int(name)) == uid for name in os.listdir("/proc") if name.isdigit())


def command(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third on; the second, a name, may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
