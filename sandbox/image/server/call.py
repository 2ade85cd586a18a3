"""One call inside the dispatcher: its request, its output so far, and what its end means."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from typing import Any

from . import imports
from .capture import Capture
from .child import MEMORY_SIGNAL
from .linux import OomCounter
from .peers import Peer
from .slot import Slot

# SIGXCPU goes by sampled ticks, which under load run ahead of the clock that is read at the end.
CPU_TOLERANCE = 0.5
HARD_OUTPUT = 8 << 20  # bytes of both streams together; beyond it the call is ended
KIB = 1024
MIB = 1 << 20
READ_SIZE = 1 << 16


@dataclass(frozen=True)
class Exit:
    """How the call's first process ended, as the kernel told it."""

    wait_status: int
    cpu_s: float
    max_rss_mb: float


@dataclass(eq=False)
class Call:
    """A request that waits, holds a slot, or both ends."""

    id: int
    code: str
    stdin: str
    limits: dict[str, Any]
    mode: str
    history: list[str]
    peer: Peer
    slot: Slot | None = None
    pid: int | None = None  # of its first process, once it has been forked
    look_at: float = 0.0  # when its dispatcher looks at it next, if nothing happens before
    started_at: float = 0.0
    ended_at: float = 0.0
    ended_by: str | None = None  # the status that the dispatcher decided on when it ended the call
    exit: Exit | None = None
    watched: bool = False  # its pipes are in the loop
    pipes: dict[int, Capture] = field(default_factory=dict)  # that have not been read to their end
    cpu_seen_s: float = 0.0  # of all its processes, by the last look

    def __post_init__(self) -> None:
        self.out = Capture(self.limits["output_kib"] * KIB)
        self.err = Capture(self.limits["output_kib"] * KIB)
        self.tier = imports.tier_for("\n".join([*self.history, self.code]))

    @classmethod
    def of(cls, message: dict[str, Any], peer: Peer) -> Call:
        return cls(
            message["id"],
            message["code"],
            message["stdin"],
            message["limits"],
            message.get("mode", "script"),
            message.get("history", []),
            peer,
        )

    def program(self) -> bytes:
        """What the child reads."""
        if self.mode == "cell":
            return json.dumps({"history": self.history, "code": self.code}).encode()
        return self.code.encode("utf-8", "surrogatepass")

    def read(self, fd: int) -> bool:
        """Take what is in the pipe now, one piece at most; False if there is nothing, True at the end too."""
        try:
            data = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return False
        if data:
            self.pipes[fd].add(data)
        else:
            del self.pipes[fd]
        return True

    @property
    def too_much_output(self) -> bool:
        return self.out.total + self.err.total > HARD_OUTPUT

    def result(self, oom: OomCounter) -> dict[str, Any]:
        """The reply, once the call has ended and its output is complete."""
        end = self.exit
        reply: dict[str, Any] = {
            "id": self.id,
            "status": self._status(oom),
            "stdout": self.out.text(),
            "stderr": self.err.text(),
            "truncated": self.out.truncated or self.err.truncated,
            "wall_s": round(self.ended_at - self.started_at, 6),
        }
        if end is None:
            return reply
        reply["cpu_s"] = round(max(end.cpu_s, self.cpu_seen_s), 6)
        reply["max_rss_mb"] = round(end.max_rss_mb, 1)
        if self.ended_by is None and os.WIFEXITED(end.wait_status):
            reply["exit_code"] = os.WEXITSTATUS(end.wait_status)
        if reply["status"] == "signal":
            reply["signal"] = os.WTERMSIG(end.wait_status)
        return reply

    def _status(self, oom: OomCounter) -> str:
        if self.ended_by is not None:
            return self.ended_by
        if self.exit is None:
            return "sandbox_error"
        if self.exit.cpu_s >= self.limits["cpu_s"]:
            return "cpu_limit"
        if os.WIFEXITED(self.exit.wait_status):
            return "ok" if os.WEXITSTATUS(self.exit.wait_status) == 0 else "error"
        number = os.WTERMSIG(self.exit.wait_status)
        if number == signal.SIGXCPU and self.exit.cpu_s >= self.limits["cpu_s"] * CPU_TOLERANCE:
            return "cpu_limit"
        if number == MEMORY_SIGNAL:
            return "memory"
        if number == signal.SIGKILL and oom.moved_since(self.started_at):
            return "oom_victim"
        return "signal"


def file_of(name: str, data: bytes) -> int:
    """An anonymous file: the program may read it at any pace, or never."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
