"""One call inside the dispatcher: its request, its output so far, and what its end means."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from . import linux
from .capture import Capture
from .child import MEMORY_SIGNAL

CPU_TOLERANCE = (
    0.5  # SIGXCPU goes by sampled ticks, which under load run ahead of the clock that we read
)
HARD_OUTPUT = 8 << 20  # bytes of both streams together; beyond it the call is ended
KIB = 1024
SCI_IMPORT = re.compile(r"\b(?:numpy|scipy|sympy|mpmath|networkx|pandas)\b")


@dataclass
class Exit:
    """How the call's first process ended, as its zygote saw it."""

    wait_status: int
    cpu_s: float
    max_rss_mb: float


@dataclass
class Call:
    """A request that holds a slot, or waits for its zygote."""

    id: int
    code: str
    stdin: str
    limits: dict[str, Any]
    peer: Any
    mode: str = "script"
    history: list[str] = field(default_factory=list)  # the cells before, in cell mode
    out: Capture = field(init=False)
    err: Capture = field(init=False)
    started_at: float = 0.0
    ended_at: float = 0.0
    open_pipes: set[int] = field(default_factory=set)
    ended_by: str | None = None  # the status that the dispatcher decided on when it ended the call
    exit: Exit | None = None
    oom_before: int = 0

    def __post_init__(self) -> None:
        self.out = Capture(self.limits["output_kib"] * KIB)
        self.err = Capture(self.limits["output_kib"] * KIB)

    @property
    def tier(self) -> str:
        return "sci" if any(map(SCI_IMPORT.search, (self.code, *self.history))) else "std"

    @property
    def too_much_output(self) -> bool:
        return self.out.total + self.err.total > HARD_OUTPUT

    def files(self) -> list[int]:
        """Code and stdin as anonymous files: the program may read them at any pace, or never."""
        program = self.code
        if self.mode == "cell":
            program = json.dumps({"history": self.history, "code": self.code})
        descriptors = []
        for name, data in (
            ("code", program.encode("utf-8", "surrogatepass")),
            ("stdin", self.stdin.encode("utf-8", "replace")),
        ):
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.lseek(fd, 0, os.SEEK_SET)
            descriptors.append(fd)
        return descriptors

    def begin(self) -> None:
        self.started_at = time.monotonic()
        self.oom_before = linux.oom_kills()

    def result(self) -> dict[str, Any]:
        """The reply, once the call has ended and its output is complete."""
        end = self.exit
        reply: dict[str, Any] = {
            "id": self.id,
            "status": self._status(),
            "stdout": self.out.text(),
            "stderr": self.err.text(),
            "truncated": self.out.truncated or self.err.truncated,
            "wall_s": round(self.ended_at - self.started_at, 6),
        }
        if end is None:
            return reply
        reply |= {"cpu_s": round(end.cpu_s, 6), "max_rss_mb": round(end.max_rss_mb, 1)}
        if self.ended_by is None and os.WIFEXITED(end.wait_status):
            reply["exit_code"] = os.WEXITSTATUS(end.wait_status)
        if reply["status"] == "signal":
            reply["signal"] = os.WTERMSIG(end.wait_status)
        return reply

    def _status(self) -> str:
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
        if number == signal.SIGKILL and linux.oom_kills() > self.oom_before:
            culprit = self.exit.max_rss_mb > self.limits["memory_mb"] / 2
            return "memory" if culprit else "oom_victim"
        return "signal"
