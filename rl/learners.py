"""The learner group as the trainer sees it: one call, every rank."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray

from rl.cluster import actor_options
from rl.config import ClusterConfig, LearnerConfig, LossConfig, OptimizerConfig
from rl.learner import Facts, Learner
from rl.packing import Plan, plan
from rl.samples import Sample
from rl.transfer import Meeting


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
        self.facts: Facts = (await self._all("setup", address, port))[0]

    async def update(self, batches: Sequence[Sequence[Sample]]) -> dict[str, float]:
        """One optimizer update a batch, on all ranks together; returns global means."""
        if not batches or not all(batches):
            raise ValueError("an update needs samples; a step that kept none skips it")
        began = time.monotonic()
        shares: list[list[Any]] = [[] for _ in self.ranks]
        plans = []
        for batch in batches:
            lengths = [len(sample.ids) for sample in batch]
            plans.append(self._plan(lengths))
            for share, micros in zip(shares, plans[-1].micro_batches, strict=True):
                share.append([[batch[i] for i in micro] for micro in micros])
        stats = await asyncio.gather(
            *(rank.update.remote(share) for rank, share in zip(self.ranks, shares, strict=True))
        )
        tokens = sum(len(sample.ids) for batch in batches for sample in batch)
        return dict(stats[0]) | {
            "learner/tokens_per_s": tokens / (time.monotonic() - began),
            "learner/padding_share": float(np.mean([plan.padding_share for plan in plans])),
            "learner/idle_share": float(np.mean([plan.idle_share for plan in plans])),
            "learner/micro_batches": float(sum(len(plan.micro_batches[0]) for plan in plans)),
        }

    def _plan(self, lengths: list[int]) -> Plan:
        shape = self.facts.shape
        return plan(
            lengths,
            len(self.ranks),
            self.config.micro_batch_tokens,
            self.facts.packed,
            shape.training_flops,
        )

    async def logprobs(self, ids: list[int]) -> list[float]:
        return list((await self._all("logprobs", ids))[0])

    async def publish(self, directory: Path, version: int, dtype: str) -> Path:
        """Write the weights for the engines; returns the directory to load."""
        return Path((await self._all("publish", directory, version, dtype))[0])

    async def transfer(
        self,
        engines: Sequence[Any],
        workers: int,
        backend: Literal["nccl", "ipc"],
        version: int,
        dtype: str,
    ) -> None:
        """Send the weights straight to the devices of these engines, of `workers` GPUs each."""
        address, port = await self.ranks[0].rendezvous_address.remote()
        meeting = Meeting(backend, address, port, engines, workers)
        await asyncio.gather(*(engine.begin_transfer.remote() for engine in engines))
        await self._all("transfer", meeting, dtype)
        await asyncio.gather(*(engine.end_transfer.remote(version) for engine in engines))

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
        return list(
            await asyncio.gather(*(getattr(rank, method).remote(*args) for rank in self.ranks))
        )
