"""What a set of scored rollouts says about a policy: avg@k with its standard error, and how it worked.

Scoring needs little of a rollout (`Attempt`), so that a long evaluation can keep its results on disk.
Invariant: every problem counts; one without attempts (its prompt was too long) is unsolved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rl.trajectory import Rollout, StopReason


@dataclass(frozen=True)
class Attempt:
    """One rollout, as scoring sees it."""

    reward: float
    stop: StopReason
    tokens: int  # of the whole response, tool output included
    calls: int
    failed_calls: int

    @classmethod
    def of(cls, rollout: Rollout) -> Attempt:
        if rollout.stop is None:
            raise AssertionError(f"{rollout.problem_id}: a finished rollout has no StopReason")
        return cls(
            rollout.reward,
            rollout.stop,
            len(rollout.response_ids),
            len(rollout.calls),
            rollout.failed_calls,
        )

    @property
    def correct(self) -> bool:
        return self.reward > 0.5


@dataclass(frozen=True)
class Scores:
    """Figures over n problems with k samples each. Rates are shares, tokens are of the whole response."""

    problems: int
    samples: int
    accuracy: float  # avg@k
    accuracy_stderr: float  # over problems: std of the problems' means / sqrt(n)
    pass_at_k: float
    mean_tokens: float
    tool_calls: float
    tool_error_rate: float
    tool_error_rate_correct: float  # inside correct rollouts
    stop_reasons: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """As JSON values: a figure that there is none of (the error of one problem) is None."""
        figures = asdict(self)
        if math.isnan(self.accuracy_stderr):
            figures["accuracy_stderr"] = None
        return figures


def score(groups: Sequence[Sequence[Rollout]]) -> Scores:
    """Scores of one group of rollouts a problem; a rollout that ended as `error` counts as unsolved."""
    return score_attempts([[Attempt.of(rollout) for rollout in group] for group in groups])


def score_attempts(groups: Sequence[Sequence[Attempt]]) -> Scores:
    """The same of attempts."""
    attempts = [attempt for group in groups for attempt in group]
    means = np.array([_mean([attempt.reward for attempt in group]) for group in groups])
    reasons = Counter(attempt.stop for attempt in attempts)
    return Scores(
        problems=len(groups),
        samples=max(map(len, groups)),
        accuracy=float(means.mean()),
        accuracy_stderr=float(means.std(ddof=1) / np.sqrt(len(means)))
        if len(means) > 1
        else float("nan"),
        pass_at_k=_mean([any(attempt.correct for attempt in group) for group in groups]),
        mean_tokens=_mean([attempt.tokens for attempt in attempts]),
        tool_calls=_mean([attempt.calls for attempt in attempts]),
        tool_error_rate=_error_rate(attempts),
        tool_error_rate_correct=_error_rate([attempt for attempt in attempts if attempt.correct]),
        stop_reasons={str(reason): reasons[reason] for reason in StopReason},
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _error_rate(attempts: Sequence[Attempt]) -> float:
    """Failed calls / calls; 0 where there are none."""
    calls = sum(attempt.calls for attempt in attempts)
    return sum(attempt.failed_calls for attempt in attempts) / calls if calls else 0.0
