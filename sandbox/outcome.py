"""What one sandboxed call came to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a call ended. The first seven are the program's own doing; the rest are the sandbox's."""

    OK = "ok"
    ERROR = "error"  # non-zero exit, an uncaught exception included
    TIMEOUT = "timeout"  # wall clock
    CPU_LIMIT = "cpu_limit"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    SIGNAL = "signal"  # the program was killed by a signal that the sandbox did not send
    OVERLOADED = "overloaded"  # the queue is full
    CANCELLED = "cancelled"
    OOM_VICTIM = "oom_victim"  # killed because of another call's memory
    SANDBOX_ERROR = "sandbox_error"

    @property
    def infrastructure(self) -> bool:
        """Not the program's doing: retried, never shown to the model, never scored."""
        return self in (
            Status.OVERLOADED,
            Status.CANCELLED,
            Status.OOM_VICTIM,
            Status.SANDBOX_ERROR,
        )

    @property
    def failed(self) -> bool:
        """A failed call in the sense of RoC's p_err (recipe, RoC rule 2)."""
        return self is not Status.OK and not self.infrastructure


@dataclass(frozen=True)
class Outcome:
    """Result of one call. Times in seconds; `queue_s` lies outside both clocks."""

    status: Status
    exit_code: int | None = None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    queue_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    max_rss_mb: float = 0.0
    isolation: str = "none"
    attempt: int = 1
    retry_after_s: float | None = None  # when overloaded: the queue's own estimate

    @classmethod
    def from_reply(cls, reply: dict[str, Any]) -> Outcome:
        """The outcome in a gateway's reply; fields of another version are passed over."""
        known = {name: reply[name] for name in cls.__dataclass_fields__ if name in reply}
        return cls(**{**known, "status": Status(reply["status"])})
