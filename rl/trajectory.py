"""One rollout as data: the ids that the engine sampled, what was inserted, how it ended.

Invariants: `response_ids`, `mask` and `logprobs` have the same length; `mask` is 1 exactly on ids that the
model sampled, and `logprobs` holds the engine's log-probability there and 0.0 elsewhere; `stop` is set
exactly once; one weight version a rollout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

PARSE_ERROR = "parse_error"  # status of a call that could not be understood


class StopReason(StrEnum):
    """Why a rollout ended. Each has exactly one."""

    ANSWERED = "answered"  # the turn closed an <answer> and made no call
    NO_CALL = "no_call"  # the turn ended with neither a call nor an answer
    TURN_LIMIT = "turn_limit"  # the last turn allowed still made a call
    LENGTH = "length"  # the response budget is used up
    TOOL_OVERFLOW = "tool_overflow"  # the next tool response would pass the budget; it is not appended
    ERROR = "error"  # a fault of ours (sandbox, engine, deadline): no sample of the policy


@dataclass(frozen=True)
class Problem:
    """A prompt with its verifiable answer."""

    id: str
    text: str
    answer: str


@dataclass(frozen=True)
class ToolCall:
    """One call that the model made. `status` is a sandbox status or PARSE_ERROR."""

    status: str
    failed: bool
    seconds: float = 0.0  # from call to result, queue and retries included
    code: str = ""
    result: str = ""
    queue_s: float = 0.0
    cpu_s: float = 0.0
    attempt: int = 1  # more than 1: the sandbox failed before, and the call was repeated


@dataclass
class Rollout:
    """A finished conversation of one problem."""

    problem_id: str
    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_texts: list[str] = field(default_factory=list)  # what the model wrote, a string a turn
    calls: list[ToolCall] = field(default_factory=list)
    stop: StopReason | None = None
    error: str = ""
    weight_version: int = 0
    reward: float = 0.0
    wall_s: float = 0.0  # of the whole conversation
    tool_wait_s: float = 0.0  # of it, waiting for tools
    isolation: str = ""  # as the sandbox's responses report it; "" when no call was made

    @property
    def failed_calls(self) -> int:
        return sum(call.failed for call in self.calls)

    @property
    def turns(self) -> int:
        return len(self.turn_texts)

    @property
    def sampled_tokens(self) -> int:
        return sum(self.mask)

    def check(self) -> None:
        """Raise if an invariant of this module does not hold."""
        n = len(self.response_ids)
        if not len(self.mask) == len(self.logprobs) == n:
            raise AssertionError(f"{self.problem_id}: {n} ids, {len(self.mask)} mask, {len(self.logprobs)} logprobs")
        if self.stop is None:
            raise AssertionError(f"{self.problem_id}: a finished rollout has no StopReason")
        if not all(map(math.isfinite, self.logprobs)):
            raise AssertionError(f"{self.problem_id}: an engine log-probability is not finite")
