"""A policy that can be asked: engines on a checkpoint, n scored rollouts a problem.

The trainer, the hard pool, evaluation and the strong-model check all use it. All rollouts of a request are
submitted at once and start when the scheduler places them; a rollout that ended by a fault of ours is rolled
again until the deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl.config import ClusterConfig, EngineConfig, RolloutConfig, SamplingConfig
from rl.engine import EngineSpec
from rl.fleet import Fleet
from rl.reward import Verifier
from rl.trajectory import Problem, Rollout, StopReason

RETRY_PAUSE_S = 0.5  # before a faulty rollout is rolled again; doubles up to a minute
log = logging.getLogger(__name__)
OnRollout = Callable[[int, int], None]  # (rollouts done, rollouts asked)


class Policy:
    """A fleet of engines and a verifier."""

    def __init__(self, spec: EngineSpec, engine: EngineConfig, cluster: ClusterConfig) -> None:
        self.spec, self.config = spec, engine
        self.fleet = Fleet(spec, engine, cluster)
        self.verifier = Verifier()

    @property
    def weights(self) -> tuple[Path, int] | None:
        """What `load_weights` gave to the engines last."""
        return self.fleet.weights

    async def start(self) -> dict[str, Any]:
        """Start the engines; returns the first one's facts."""
        return await self.fleet.start()

    async def collect(
        self,
        problems: Sequence[Problem],
        n: int,
        config: RolloutConfig,
        sampling: SamplingConfig,
        deadline_s: float,
        on_rollout: OnRollout | None = None,
    ) -> list[list[Rollout]]:
        """n scored rollouts of each problem, a list a problem. Some may be `error` at the deadline."""
        ends = time.monotonic() + deadline_s
        done = 0

        async def one(number: int, problem: Problem, group: int, prompt_tokens: int) -> Rollout:
            nonlocal done
            pause = RETRY_PAUSE_S
            while True:
                rollout = await self.fleet.roll_out(number, problem, config, sampling, ends)
                if rollout.stop is not StopReason.ERROR:
                    break
                log.warning("%s: %s", problem.id, rollout.error)
                if time.monotonic() + pause >= ends:
                    break
                await asyncio.sleep(pause)
                pause = min(60.0, pause * 2)
                number = self.fleet.submit(group, prompt_tokens)
                self.fleet.place()
            await self._score(rollout, problem)
            done += 1
            if on_rollout is not None:
                on_rollout(done, n * len(problems))
            return rollout

        lengths = await self.fleet.prompt_tokens(list(problems))
        submitted = [
            (self.fleet.submit(group, tokens), problem, group, tokens)
            for group, (problem, tokens) in enumerate(zip(problems, lengths, strict=True))
            for _ in range(n)
        ]
        self.fleet.place()
        scheduler = self.fleet.scheduler
        log.info(
            "%d rollouts, %.0f tokens expected each, predicted peak %.2f of KV: gate %s, %d wait",
            *(len(submitted), scheduler.lengths.mean, scheduler.peak),
            *("on" if scheduler.gated else "off", scheduler.queued),
        )
        rollouts = await asyncio.gather(*(one(*rollout) for rollout in submitted))
        await self.fleet.settle()
        scheduler.end_step()
        return [rollouts[i : i + n] for i in range(0, len(rollouts), n)]

    async def load_weights(self, path: Path, version: int) -> None:
        """Give every engine the weights in `path`."""
        await self.fleet.load_weights(path, version)

    async def score(self, ids: list[int]) -> list[float]:
        """The first engine's log-probabilities of `ids[1:]`."""
        return await self.fleet.score(ids)

    async def close(self) -> None:
        await self.verifier.close()
        await self.fleet.close()

    async def _score(self, rollout: Rollout, problem: Problem) -> None:
        """Reward of a rollout; a truncated one stays, with reward 0."""
        if rollout.stop is StopReason.ANSWERED:
            verdict = await self.verifier.verify("".join(rollout.turn_texts), problem.answer)
            rollout.reward = verdict.reward
