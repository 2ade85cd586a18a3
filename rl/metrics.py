"""What one step's rollouts say. Quality figures are over *all sampled* rollouts, before selection.

After selection RoC looks clean by construction, so a figure taken there would prove nothing (rule 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rl.roc import Rejection, Selection, p_err, p_format
from rl.trajectory import PARSE_ERROR, Rollout, StopReason
from sandbox.outcome import Status


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
    } | tool_metrics(usable)
    for reason, count in stop_reasons(rollouts).items():
        metrics[f"stop/{reason}"] = count / len(rollouts)
    return metrics


def tool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What the tools cost: seconds of the calls that the sandbox served, and how calls ended.

    `tool/wait_share` is the share of the rollouts' own time that they waited for tools. Calls that run
    beside each other count in full in the sums and once in the share.
    """
    calls = [call for rollout in rollouts for call in rollout.calls]
    served = [call for call in calls if call.status != PARSE_ERROR]
    metrics = {"tool/calls": float(len(served))}
    metrics |= _spread("tool/seconds", [call.seconds for call in served])
    metrics |= _spread("tool/queue_seconds", [call.queue_s for call in served])
    metrics |= _spread("tool/cpu_seconds", [call.cpu_s for call in served])
    wall_s = sum(rollout.wall_s for rollout in rollouts)
    waited_s = sum(rollout.tool_wait_s for rollout in rollouts)
    metrics["tool/wait_share"] = waited_s / wall_s if wall_s else 0.0
    metrics["tool/retries"] = float(sum(call.attempt - 1 for call in served))
    statuses = Counter(call.status for call in calls)
    own = [str(status) for status in Status if not status.infrastructure]
    return metrics | {f"tool/status/{name}": float(statuses[name]) for name in (*own, PARSE_ERROR)}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    found = np.array(values or [0.0])
    return {
        f"{name}_sum": float(found.sum()),
        f"{name}_mean": float(found.mean()),
        f"{name}_p99": float(np.percentile(found, 99)),
    }


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
