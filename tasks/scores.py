"""What a set of scored rollouts says about a policy: avg@k with its standard error, and how it worked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rl.metrics import stop_reasons, tool_error_rate
from rl.trajectory import Rollout


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
        return asdict(self)


def score(groups: Sequence[Sequence[Rollout]]) -> Scores:
    """Scores of one group of rollouts a problem; a rollout that ended as `error` counts as unsolved."""
    rollouts = [rollout for group in groups for rollout in group]
    means = np.array([np.mean([rollout.reward for rollout in group]) for group in groups])
    return Scores(
        problems=len(groups),
        samples=len(groups[0]),
        accuracy=float(means.mean()),
        accuracy_stderr=float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan"),
        pass_at_k=float(np.mean([any(r.reward > 0.5 for r in group) for group in groups])),
        mean_tokens=float(np.mean([len(r.response_ids) for r in rollouts])),
        tool_calls=float(np.mean([len(r.calls) for r in rollouts])),
        tool_error_rate=tool_error_rate(rollouts),
        tool_error_rate_correct=tool_error_rate([r for r in rollouts if r.reward > 0.5]),
        stop_reasons=stop_reasons(rollouts),
    )
