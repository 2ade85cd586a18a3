"""A policy that can be asked: engines on a checkpoint, n scored rollouts a problem.

The trainer, the hard pool, evaluation and the strong-model check all use it. Every problem of a request
is submitted at once; a rollout that ended by a fault of ours is rolled again until the deadline; an
engine that dies is started again with the current weights and its rollouts are placed anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from rl.cluster import actor_options
from rl.config import ClusterConfig, EngineConfig, RolloutConfig, SamplingConfig
from rl.engine import Engine, EngineSpec
from rl.reward import Verifier
from rl.scheduler import Scheduler
from rl.trajectory import Problem, Rollout, StopReason
from sandbox.errors import InfrastructureError

RETRY_PAUSE_S = 0.5  # before a faulty rollout is rolled again; doubles up to a minute
ENGINE_STARTS = 5  # an engine that dies as often is no accident
log = logging.getLogger(__name__)
OnRollout = Callable[[int, int], None]  # (rollouts done, rollouts asked)


class Policy:
    """Engines under one scheduler."""

    def __init__(self, spec: EngineSpec, engine: EngineConfig, cluster: ClusterConfig) -> None:
        self.spec, self.config, self.cluster = spec, engine, cluster
        self.weights: tuple[Path, int] | None = None
        self.verifier = Verifier()
        self.scheduler = Scheduler(engine.count)
        self._engines: list[Any] = []
        self._starts = [0] * engine.count
        self._restarting = asyncio.Lock()
        self._number = 0

    async def start(self) -> dict[str, Any]:
        """Start the engines; returns the first one's facts."""
        self._engines = [self._spawn(i) for i in range(self.config.count)]
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                facts = await asyncio.gather(*(engine.facts.remote() for engine in self._engines))
        except TimeoutError:
            raise InfrastructureError(
                f"an engine on {self.spec.model_dir} did not start within engine.start_timeout_s "
                f"({self.config.start_timeout_s:g} s)"
            ) from None
        return dict(facts[0])

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

        async def one(problem: Problem) -> Rollout:
            nonlocal done
            rollout = await self._serve(problem, config, sampling, ends)
            done += 1
            if on_rollout is not None:
                on_rollout(done, n * len(problems))
            return rollout

        async def group(problem: Problem) -> list[Rollout]:
            return list(await asyncio.gather(*(one(problem) for _ in range(n))))

        return list(await asyncio.gather(*(group(problem) for problem in problems)))

    async def load_weights(self, path: Path, version: int) -> None:
        """Give every engine the weights in `path`."""
        self.weights = (path, version)
        await asyncio.gather(*(engine.load_weights.remote(path, version) for engine in self._engines))

    async def score(self, ids: list[int]) -> list[float]:
        """The first engine's log-probabilities of `ids[1:]`."""
        return list(await self._engines[0].score.remote(ids))

    async def close(self) -> None:
        await self.verifier.close()
        for engine in self._engines:
            try:
                await asyncio.wait_for(engine.shutdown.remote(), 10)
            except (TimeoutError, RayActorError) as error:
                log.warning("engine did not shut down in time: %r", error)
            ray.kill(engine)
        self._engines = []

    async def _serve(
        self, problem: Problem, config: RolloutConfig, sampling: SamplingConfig, ends: float
    ) -> Rollout:
        pause = RETRY_PAUSE_S
        while True:
            rollout = await self._roll_out(problem, config, sampling, ends)
            if rollout.stop is not StopReason.ERROR:
                # a truncated rollout stays, with reward 0
                if rollout.stop is StopReason.ANSWERED:
                    verdict = await self.verifier.verify("".join(rollout.turn_texts), problem.answer)
                    rollout.reward = verdict.reward
                return rollout
            log.warning("%s: %s", problem.id, rollout.error)
            if time.monotonic() + pause >= ends:
                return rollout
            await asyncio.sleep(pause)
            pause = min(60.0, pause * 2)

    async def _roll_out(
        self, problem: Problem, config: RolloutConfig, sampling: SamplingConfig, ends: float
    ) -> Rollout:
        number, self._number = self._number, self._number + 1
        index = self.scheduler.place(number)
        engine = self._engines[index]
        config = config.model_copy(
            update={"deadline_s": max(0.01, min(config.deadline_s, ends - time.monotonic()))}
        )
        try:
            return await engine.roll_out.remote(problem, config, sampling)
        except RayActorError as error:
            await self._restart(index, engine, error)
            return Rollout(problem.id, [], stop=StopReason.ERROR, error=f"engine {index} died")
        finally:
            if number in self.scheduler.placed:
                self.scheduler.finish(number)

    async def _restart(self, index: int, dead: Any, error: RayActorError) -> None:
        async with self._restarting:
            if self._engines[index] is not dead:
                return  # another of its rollouts was first
            if self._starts[index] >= ENGINE_STARTS:
                raise InfrastructureError(f"engine {index} died {ENGINE_STARTS} times; the last time: {error}")
            log.warning("engine %d died and is started again: %s", index, error)
            engine = self._spawn(index)
            await asyncio.wait_for(engine.facts.remote(), self.config.start_timeout_s)
            if self.weights is not None:
                await engine.load_weights.remote(*self.weights)
            self._engines[index] = engine

    def _spawn(self, index: int) -> Any:
        self._starts[index] += 1
        spec = dataclasses.replace(self.spec, seed=self.spec.seed + 1000 * index)
        options = actor_options(self.cluster, self.config.tensor_parallel, self.config.threads)
        return ray.remote(Engine).options(max_concurrency=100_000, **options).remote(spec)
