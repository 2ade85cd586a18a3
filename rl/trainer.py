"""The loop of one RL stage, as the report has it: sample, score, select, learn, sync, log (section 3).

Synchronous: a batch is learned by the weights that sampled it. What must hold is checked where it would
fail silently: group sizes, one weight version a batch, the mismatch between engine and learner.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rl import roc, weights
from rl.checkpoint import Checkpoints, TrainerState
from rl.config import RLConfig, SamplingConfig
from rl.learners import LearnerGroup
from rl.metrics import group_metrics
from rl.policy import Policy
from rl.pool import Pool
from rl.roc import Rejection, Selection
from rl.samples import update_batches
from rl.trajectory import Problem, Rollout

T = TypeVar("T")
QUICK_CHECKPOINT_S = 5.0  # when told to stop, a checkpoint is written only if the last one was this quick


@dataclass
class StepReport:
    """One step, for the log and for storage."""

    step: int  # steps done, this one included
    metrics: dict[str, float]
    groups: list[list[Rollout]]
    selections: list[Selection | Rejection]


class MismatchError(Exception):
    """Engine and learner disagree about the policy: training on it would learn noise."""


@dataclass
class Trainer:
    """Everything that a stage's loop needs; `run` is the loop."""

    policy: Policy
    learner: LearnerGroup
    pool: Pool
    config: RLConfig
    checkpoints: Checkpoints
    channel: Path  # directory through which weights go to the engines
    engine_dtype: str
    seed: int
    on_step: Callable[[StepReport], None]
    stopping: Callable[[], bool]
    step: int = 0
    weight_version: int = 0
    _seconds: dict[str, float] = field(default_factory=dict)
    _checkpoint_s: float = float("inf")

    async def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        found = self.checkpoints.latest()
        if found is None:
            return
        state, path = found
        await self.learner.load(path)
        self.step, self.pool.cursor = state.step, state.cursor
        self.weight_version = state.weight_version - 1
        await self._push()

    async def run(self) -> bool:
        """Do the remaining steps. False if it was told to stop before the end."""
        while self.step < self.config.steps:
            if self.stopping():
                if self._checkpoint_s < QUICK_CHECKPOINT_S:
                    await self._save()
                return False
            await self._one_step()
            if self.step % self.config.checkpoint_every == 0 or self.step == self.config.steps:
                await self._save()
        return True

    async def _one_step(self) -> None:
        self._seconds = {}
        problems = self.pool.take(self.config.prompts)
        groups = await self._timed("rollout", self._collect(problems))
        selections = [
            roc.select(group, self.config.roc, roc.generator(self.seed, self.step, problem.id))
            for problem, group in zip(problems, groups, strict=True)
        ]
        batches = update_batches(groups, selections, self.config)
        learned: dict[str, float] = {}
        if batches:
            learned = await self._timed("learn", self.learner.update(batches))
            check_mismatch(self.step, learned["mismatch_kl"], self.config.loss.mismatch_limit)
            await self._timed("sync", self._push())
        self.step += 1
        metrics = group_metrics(groups, selections) | learned
        metrics |= {f"seconds/{name}": value for name, value in self._seconds.items()}
        metrics |= {"skipped_update": float(not batches), "weight_version": self.weight_version}
        self.on_step(StepReport(self.step, metrics, groups, selections))

    async def _collect(self, problems: list[Problem]) -> list[list[Rollout]]:
        groups = await self.policy.collect(
            problems,
            self.config.roc.rollouts,
            self.config.rollout,
            SamplingConfig(),
            self.config.step_deadline_s,
        )
        versions = Counter(r.weight_version for group in groups for r in group if not r.error)
        if set(versions) - {self.weight_version}:
            raise AssertionError(f"rollouts of weight versions {dict(versions)}, not {self.weight_version}")
        return groups

    async def _push(self) -> None:
        version = self.weight_version + 1
        path = await self.learner.publish(self.channel, version, self.engine_dtype)
        previous = self.policy.weights
        await self.policy.load_weights(path, version)
        self.weight_version = version
        if previous is not None:
            weights.discard(previous[0])  # the current one stays for an engine that must be restarted

    async def _save(self) -> None:
        began = time.monotonic()
        state = TrainerState(self.step, self.pool.cursor, self.weight_version)
        await self.checkpoints.save(state, self.learner.save)
        self._checkpoint_s = time.monotonic() - began

    async def _timed(self, name: str, work: Awaitable[T]) -> T:
        began = time.monotonic()
        result = await work
        self._seconds[name] = time.monotonic() - began
        return result


def check_mismatch(step: int, kl: float, limit: float) -> None:
    """Stop where the engine sampled from another policy than the learner learns; not a number counts too."""
    if not kl <= limit:
        raise MismatchError(
            f"step {step}: KL between engine and learner is {kl:.3g} nats a token, above loss.mismatch_limit "
            f"({limit:g}); their weights or their numerics differ, and training on would learn noise"
        )
