"""GRPO-RoC's selection: 2G rollouts in, G out, with their advantages (section 3.2 of the report).

Failures are drawn uniformly, so that the policy sees the whole variety of its mistakes. Correct rollouts
are drawn without replacement with weight 1 / (p_err + p_format + epsilon), so that clean traces are
preferred. Pure: no I/O, and every draw comes from a generator seeded by (run seed, step, problem id), so
a resumed step selects what it would have selected before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rl.config import RocConfig
from rl.trajectory import Rollout, StopReason

REWARD_NOISE = 1e-6  # rewards closer than this are equal: a std of rounding noise is no signal
STD_FLOOR = 1e-6


class Rejection(StrEnum):
    """Why a group gives no gradient."""

    SHORT = "short"  # fewer than G rollouts could be served
    SOLVE_ALL = "solve_all"
    SOLVE_NONE = "solve_none"


@dataclass(frozen=True)
class Selection:
    """The kept rollouts of a group, as indices into it, and one advantage each."""

    kept: list[int]
    advantages: list[float]


def p_err(rollout: Rollout) -> float:
    """Share of failed tool calls; 0.5 without any call."""
    return rollout.failed_calls / len(rollout.calls) if rollout.calls else 0.5


def p_format(rollout: Rollout) -> float:
    """1 for a missing `<answer>` or unbalanced tags, else min(1, (answers - 1) / turns)."""
    text = "".join(rollout.turn_texts)
    for tag in ("reason", "answer", "tool_call"):
        if text.count(f"<{tag}>") != text.count(f"</{tag}>"):
            return 1.0
    answers = text.count("<answer>")
    return min(1.0, (answers - 1) / rollout.turns) if answers else 1.0


def penalty(rollout: Rollout) -> float:
    return p_err(rollout) + p_format(rollout)


def quotas(correct: int, failed: int, keep: int) -> tuple[int, int]:
    """How many correct and how many failed rollouts to keep; they add up to `keep`.

    Each class gets floor(keep * size / n). A slot that rounding leaves free goes to the rarer class
    (to the correct one in a tie).
    """
    n = correct + failed
    if keep > n:
        raise ValueError(f"cannot keep {keep} of {n} rollouts")
    from_correct, from_failed = keep * correct // n, keep * failed // n
    free = keep - from_correct - from_failed
    if correct <= failed:
        return from_correct + free, from_failed
    return from_correct, from_failed + free


def generator(seed: int, step: int, problem_id: str) -> np.random.Generator:
    digest = hashlib.sha256(problem_id.encode()).digest()
    return np.random.default_rng([seed, step, int.from_bytes(digest[:8], "big")])


def advantages(rewards: Sequence[float]) -> list[float]:
    """(r - mean) / (std + 1e-6) over the kept group; std with n - 1."""
    values = np.asarray(rewards, dtype=np.float64)
    return ((values - values.mean()) / (values.std(ddof=1) + STD_FLOOR)).tolist()


def select(group: Sequence[Rollout], config: RocConfig, rng: np.random.Generator) -> Selection | Rejection:
    """Select G of the group's rollouts; rollouts that ended as `error` are no samples of the policy."""
    usable = [i for i, rollout in enumerate(group) if rollout.stop is not StopReason.ERROR]
    if len(usable) < config.kept:
        return Rejection.SHORT
    rewards = np.array([group[i].reward for i in usable])
    if np.ptp(rewards) < REWARD_NOISE:
        return Rejection.SOLVE_ALL if rewards[0] > 0.5 else Rejection.SOLVE_NONE
    if config.selection == "all":
        kept = usable
    else:
        kept = _draw(group, usable, config, rng)
    return Selection(kept, advantages([group[i].reward for i in kept]))


def _draw(
    group: Sequence[Rollout], usable: list[int], config: RocConfig, rng: np.random.Generator
) -> list[int]:
    correct = [i for i in usable if group[i].reward > 0.5]
    failed = [i for i in usable if group[i].reward <= 0.5]
    from_correct, from_failed = quotas(len(correct), len(failed), config.kept)
    penalties = np.array([penalty(group[i]) for i in correct])
    if config.selection == "top":
        chosen = np.argsort(penalties, kind="stable")[:from_correct]
    else:
        weights = 1.0 / (penalties + config.epsilon)
        chosen = rng.choice(len(correct), from_correct, replace=False, p=weights / weights.sum())
    losers = rng.choice(len(failed), from_failed, replace=False)
    return sorted([correct[i] for i in chosen] + [failed[i] for i in losers])
