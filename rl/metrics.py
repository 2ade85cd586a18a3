"""What one step's rollouts say. Quality figures are over *all sampled* rollouts, before selection.

After selection RoC looks clean by construction, so a figure taken there would prove nothing (rule 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rl.roc import Rejection, Selection, p_err, p_format
from rl.trajectory import Rollout, StopReason


def stop_reasons(rollouts: Sequence[Rollout]) -> dict[str, int]:
    counts = Counter(rollout.stop for rollout in rollouts)
    return {str(reason): counts[reason] for reason in StopReason}


def tool_error_rate(rollouts: Sequence[Rollout]) -> float:
    """Failed calls / calls; 0 where there are none."""
    calls = sum(len(rollout.calls) for rollout in rollouts)
    return sum(rollout.failed_calls for rollout in rollouts) / calls if calls else 0.0


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Figures of any set of rollouts; those that ended as `error` count only as such."""
    usable = [r for r in rollouts if r.stop is not StopReason.ERROR]
    if not usable:
        return {"errors": float(len(rollouts))}
    correct = [r for r in usable if r.reward > 0.5]
    metrics = {
        "reward": float(np.mean([r.reward for r in usable])),
        "tool_calls": float(np.mean([len(r.calls) for r in usable])),
        "tool_error_rate": tool_error_rate(usable),
        "tool_error_rate_correct": tool_error_rate(correct),
        "response_tokens": float(np.mean([len(r.response_ids) for r in usable])),
        "response_tokens_max": float(max(len(r.response_ids) for r in usable)),
        "turns": float(np.mean([r.turns for r in usable])),
        "tool_seconds": float(sum(call.seconds for r in usable for call in r.calls)),
    }
    for reason, count in stop_reasons(rollouts).items():
        metrics[f"stop/{reason}"] = count / len(rollouts)
    return metrics


def group_metrics(
    groups: Sequence[Sequence[Rollout]], selections: Sequence[Selection | Rejection]
) -> dict[str, float]:
    """Figures of a step: all its rollouts, what became of its groups, penalties before and after."""
    metrics = rollout_metrics([rollout for group in groups for rollout in group])
    fates = Counter(s for s in selections if isinstance(s, Rejection))
    metrics |= {f"groups/{fate}": fates[fate] / len(groups) for fate in Rejection}
    metrics["groups/kept"] = sum(isinstance(s, Selection) for s in selections) / len(groups)
    before, after = [], []
    for group, selection in zip(groups, selections, strict=True):
        if isinstance(selection, Selection):
            before += [r for r in group if r.reward > 0.5]
            after += [group[i] for i in selection.kept if group[i].reward > 0.5]
    for name, rollouts in (("before", before), ("after", after)):
        if rollouts:
            metrics[f"roc/p_err_{name}"] = float(np.mean([p_err(r) for r in rollouts]))
            metrics[f"roc/p_format_{name}"] = float(np.mean([p_format(r) for r in rollouts]))
    return metrics
