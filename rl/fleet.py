"""The engines of a policy: rollouts wait here for their place, run there, and survive an engine's death.

The scheduler decides; this file carries out. An open rollout has a future that holds its engine once it is
placed. When an engine dies, whoever notices first reports it: its rollouts get new futures and go back to the
scheduler, and another engine is started in its place, with the current weights. The others go on meanwhile.
Invariant: every submitted rollout is run once to its end, or ends as `error` at its deadline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from rl.cluster import actor_options
from rl.config import ClusterConfig, EngineConfig, RolloutConfig, SamplingConfig
from rl.engine import Engine, EngineSpec
from rl.scheduler import Scheduler
from rl.trajectory import Problem, Rollout, StopReason
from sandbox.errors import InfrastructureError

ENGINE_STARTS = 5  # an engine that dies as often is no accident
log = logging.getLogger(__name__)


class Fleet:
    """Engines under one scheduler."""

    def __init__(self, spec: EngineSpec, engine: EngineConfig, cluster: ClusterConfig) -> None:
        self.spec, self.config, self.cluster = spec, engine, cluster
        self.weights: tuple[Path, int] | None = None
        self.scheduler = Scheduler(
            [], spec.context_tokens, engine.scheduler
        )  # has engines after `start`
        self._engines: list[Any] = []
        self._starts = [0] * engine.count
        self._restarts: dict[int, asyncio.Task[None]] = {}  # engines that are being started again
        self._places: dict[int, asyncio.Future[int]] = {}  # open rollout -> its engine
        self._submitted = 0

    async def start(self) -> dict[str, Any]:
        """Start the engines; returns the first one's facts."""
        self._engines = [self._spawn(i) for i in range(self.config.count)]
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                facts = await asyncio.gather(*(engine.facts.remote() for engine in self._engines))
        except TimeoutError:
            raise self._too_slow() from None
        kv_tokens = [fact["kv_tokens"] for fact in facts]
        self.scheduler = Scheduler(kv_tokens, self.spec.context_tokens, self.config.scheduler)
        return dict(facts[0])

    async def prompt_tokens(self, problems: list[Problem]) -> list[int]:
        """Length of the prompt of each problem."""
        while True:
            await self.settle()
            engine = self._engines[0]
            try:
                return list(
                    await engine.prompt_tokens.remote([problem.text for problem in problems])
                )
            except RayActorError as error:
                self._lose(0, engine, error)

    def submit(self, group: int, prompt_tokens: int) -> int:
        """Ask for a place for a rollout; returns its number. `place` hands out places."""
        number, self._submitted = self._submitted, self._submitted + 1
        self.scheduler.submit(number, group, prompt_tokens)
        self._places[number] = asyncio.get_running_loop().create_future()
        self._fail_waiting()
        return number

    def place(self) -> None:
        """Let every rollout start that may start at this moment."""
        for number, index in self.scheduler.ready():
            if not self._places[number].done():  # else it gave up waiting
                self._places[number].set_result(index)

    async def roll_out(
        self,
        number: int,
        problem: Problem,
        config: RolloutConfig,
        sampling: SamplingConfig,
        ends: float,
    ) -> Rollout:
        """Run a submitted rollout when it is placed, again if its engine dies, until `ends` (monotonic)."""
        rollout = Rollout(
            problem.id, [], stop=StopReason.ERROR, error="no engine had room before the deadline"
        )
        try:
            while (left_s := ends - time.monotonic()) > 0:
                try:
                    index = await asyncio.wait_for(self._places[number], left_s)
                except TimeoutError:
                    break
                engine = self._engines[index]
                deadline_s = max(0.01, min(config.deadline_s, ends - time.monotonic()))
                limited = config.model_copy(update={"deadline_s": deadline_s})
                try:
                    rollout = await engine.roll_out.remote(problem, limited, sampling)
                    break
                except RayActorError as error:
                    rollout.error = f"engine {index} died"
                    self._lose(index, engine, error)
            return rollout
        finally:
            ended = rollout.stop is not StopReason.ERROR
            self.scheduler.finish(number, len(rollout.response_ids) if ended else None)
            del self._places[number]
            self.place()

    async def settle(self) -> None:
        """Wait until every engine is there; raises if one cannot be started again."""
        await asyncio.gather(*self._restarts.values())

    async def load_weights(self, path: Path, version: int) -> None:
        """Give every engine the weights in `path`."""
        await self.settle()
        self.weights = (path, version)
        await asyncio.gather(
            *(engine.load_weights.remote(path, version) for engine in self._engines)
        )

    async def score(self, ids: list[int]) -> list[float]:
        """The first engine's log-probabilities of `ids[1:]`."""
        return list(await self._engines[0].score.remote(ids))

    async def close(self) -> None:
        for restart in self._restarts.values():
            restart.cancel()
        for engine in self._engines:
            try:
                await asyncio.wait_for(engine.shutdown.remote(), 10)
            except (TimeoutError, RayActorError) as error:
                log.warning("engine did not shut down in time: %r", error)
            ray.kill(engine)
        self._engines = []

    def _lose(self, index: int, dead: Any, error: RayActorError) -> None:
        if self._engines[index] is not dead or index in self._restarts:
            return  # another of its rollouts was first
        log.warning("engine %d died and is started again: %s", index, error)
        for number in self.scheduler.lose(index):
            self._places[number] = asyncio.get_running_loop().create_future()
        self._restarts[index] = asyncio.create_task(self._restart(index, error))
        self._restarts[index].add_done_callback(lambda _: self._fail_waiting())
        self.place()

    async def _restart(self, index: int, error: RayActorError) -> None:
        while self._starts[index] < ENGINE_STARTS:
            engine = self._spawn(index)
            try:
                async with asyncio.timeout(self.config.start_timeout_s):
                    await engine.facts.remote()
                    if self.weights is not None:
                        await engine.load_weights.remote(*self.weights)
            except RayActorError as again:
                error = again
                continue
            except TimeoutError:
                ray.kill(engine)
                raise self._too_slow() from None
            self._engines[index] = engine
            del self._restarts[index]
            self.scheduler.restore(index)
            self.place()
            return
        raise InfrastructureError(
            f"engine {index} died {ENGINE_STARTS} times; the last time: {error}"
        )

    def _fail_waiting(self) -> None:
        """If an engine cannot be started again, no rollout waits for a place."""
        for restart in self._restarts.values():
            if not restart.done() or restart.cancelled():
                continue
            error = restart.exception()
            for place in self._places.values():
                if error is not None and not place.done():
                    place.set_exception(error)

    def _too_slow(self) -> InfrastructureError:
        return InfrastructureError(
            f"an engine on {self.spec.model_dir} did not start within engine.start_timeout_s "
            f"({self.config.start_timeout_s:g} s)"
        )

    def _spawn(self, index: int) -> Any:
        self._starts[index] += 1
        spec = dataclasses.replace(self.spec, seed=self.spec.seed + 1000 * index)
        options = actor_options(self.cluster, self.config.tensor_parallel, self.config.threads)
        return ray.remote(Engine).options(max_concurrency=100_000, **options).remote(spec)
