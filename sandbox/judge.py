"""code-judge's request and response shapes, so that what was set up for it can point here.

Only Python is judged. Whatever the sandbox itself failed at comes back as `queue_timeout`, the one reason
that code-judge's clients repeat instead of blaming the program.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal

from pydantic import Field

from sandbox.config import Section
from sandbox.image.server import wire
from sandbox.outcome import Status
from sandbox.request import CallRequest, Text

TIMED_OUT = {Status.TIMEOUT, Status.CPU_LIMIT}


def _new_id() -> str:
    return str(uuid.uuid4())


class Submission(Section):
    """One program, and what it should print."""

    type: Literal["python"]
    solution: Text
    input: Text | None = None
    expected_output: Text | None = None
    sub_id: str | None = None
    options: dict[str, str] | None = None  # accepted, without effect on Python

    def call(self) -> CallRequest:
        return CallRequest(code=self.solution, stdin=self.input or "")

    def result(self, reply: wire.Message) -> dict[str, Any]:
        """code-judge's result for the gateway's reply."""
        status = Status(reply["status"])
        ran = status is Status.OK
        stdout = reply.get("stdout", "")
        expected = self.expected_output
        return {
            "sub_id": self.sub_id or _new_id(),
            "success": ran and (expected is None or stdout.strip() == expected.strip()),
            "run_success": ran,
            "cost": reply.get("wall_s", 0.0),
            "stdout": stdout,
            "stderr": reply.get("stderr", ""),
            "reason": _reason(status),
        }


class BatchSubmission(Section):
    """Several programs in one request."""

    submissions: list[Submission] = Field(min_length=1)
    type: Literal["batch"] = "batch"
    sub_id: str | None = None

    def result(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        return {"sub_id": self.sub_id or _new_id(), "results": results}


def verdict(result: dict[str, Any]) -> dict[str, Any]:
    """What the /judge routes leave of a result."""
    return {name: value for name, value in result.items() if name not in ("stdout", "stderr")}


def _reason(status: Status) -> str:
    if status.infrastructure:
        return "queue_timeout"
    return "worker_timeout" if status in TIMED_OUT else ""
