"""The learner group as the trainer sees it: one call, every rank."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from rl.cluster import actor_options
from rl.config import ClusterConfig, LearnerConfig, LossConfig, OptimizerConfig
from rl.learner import Learner, Sample
from rl.packing import plan


class LearnerGroup:
    """FSDP2 ranks. Every method calls all ranks and waits for all of them."""

    def __init__(
        self,
        model_dir: Path,
        learner: LearnerConfig,
        optimizer: OptimizerConfig,
        loss: LossConfig,
        cluster: ClusterConfig,
        seed: int,
    ) -> None:
        self.config = learner
        self.ranks: list[Any] = []
        self._spawn = lambda rank: (
            ray.remote(Learner)
            .options(**actor_options(cluster, 1, learner.threads))
            .remote(model_dir, learner, optimizer, loss, cluster.device, rank, seed)
        )

    async def start(self) -> None:
        """Place the ranks (Ray must be up) and let them meet."""
        self.ranks = [self._spawn(rank) for rank in range(self.config.ranks)]
        address, port = await self.ranks[0].rendezvous_address.remote()
        await self._all("setup", address, port)

    async def update(self, batches: Sequence[Sequence[Sample]]) -> dict[str, float]:
        """One optimizer update a batch, on all ranks together; returns global means."""
        shares: list[list[Any]] = [[] for _ in self.ranks]
        for batch in batches:
            lengths = [len(sample.ids) for sample in batch]
            for rank, micros in enumerate(plan(lengths, len(self.ranks), self.config.micro_batch_tokens)):
                shares[rank].append([[batch[i] for i in micro] for micro in micros])
        stats = await asyncio.gather(
            *(rank.update.remote(share) for rank, share in zip(self.ranks, shares, strict=True))
        )
        return dict(stats[0])

    async def logprobs(self, ids: list[int]) -> list[float]:
        return list((await self._all("logprobs", ids))[0])

    async def publish(self, directory: Path, version: int, dtype: str) -> Path:
        """Write the weights for the engines; returns the directory to load."""
        return Path((await self._all("publish", directory, version, dtype))[0])

    async def export(self, directory: Path, dtype: str) -> None:
        await self._all("export", directory, dtype)

    async def save(self, directory: Path) -> None:
        await self._all("save", directory)

    async def load(self, directory: Path) -> None:
        await self._all("load", directory)

    def close(self) -> None:
        for rank in self.ranks:
            ray.kill(rank)

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return list(await asyncio.gather(*(getattr(rank, method).remote(*args) for rank in self.ranks)))
