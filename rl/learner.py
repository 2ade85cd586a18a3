"""One rank of the learner: an FSDP2 shard of the model and its optimizer.

Each rank holds float32 master weights and optimizer state of its shard. Loss weights are global (see
`rl/loss.py`), so gradients of micro-batches and ranks are *added*; FSDP averages over ranks, which the
factor `ranks` on the loss undoes. A batch in which every group was rejected never gets here.
"""

from __future__ import annotations

import json
import os
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rl.attention import choose, register
from rl.batch import TokenBatch, collate
from rl.config import LearnerConfig, LossConfig, OptimizerConfig
from rl.logprobs import LogProbs, ModelShape, model_shape
from rl.loss import policy_loss
from rl.samples import Sample
from rl.transfer import Meeting, send
from rl.weights import publish


@dataclass(frozen=True)
class Facts:
    """What a rank found out about its model."""

    packed: bool
    attention: str
    shape: ModelShape


class Learner:
    """One rank. Wrap in `ray.remote` to place it; every rank must get every call, in the same order."""

    def __init__(
        self,
        model_dir: Path,
        learner: LearnerConfig,
        optimizer: OptimizerConfig,
        loss: LossConfig,
        device: str,
        rank: int,
        seed: int,
    ) -> None:
        self.model_dir, self.config, self.loss_config = model_dir, learner, loss
        self.optimizer_config, self.rank = optimizer, rank
        self.device = torch.device(device)
        self.schedule_step = 0
        torch.manual_seed(seed)
        if device == "cpu":
            torch.set_num_threads(learner.threads)

    def rendezvous_address(self) -> tuple[str, int]:
        """A free port on this rank's node, for all ranks to meet at."""
        import socket

        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def setup(self, address: str, port: int) -> Facts:
        """Join the group and shard the model."""
        os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=self.rank, world_size=self.config.ranks)
        facts = self._load_model()
        chosen = self.optimizer_config
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=chosen.lr,
            betas=(chosen.beta1, chosen.beta2),
            weight_decay=chosen.weight_decay,
            fused=self.device.type == "cuda",
        )
        return facts

    def _load_model(self) -> Facts:
        """The whole model exists once a node, in the page cache; a rank widens and shards it layer by layer."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from transformers import AutoConfig, AutoModelForCausalLM

        register()
        kind = AutoConfig.from_pretrained(self.model_dir)
        self.packed, attention = choose(
            self.config, AutoModelForCausalLM._model_mapping[type(kind)], kind
        )
        causal = AutoModelForCausalLM.from_pretrained(
            self.model_dir, dtype="auto", attn_implementation=attention
        )
        shape = model_shape(causal)
        if self.config.activation_checkpointing:
            causal.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = LogProbs(causal, self.config.logprob_chunk)
        self.model.train()
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if self.config.dtype == "bfloat16" else None,
            reduce_dtype=torch.float32,
        )
        mesh = dist.init_device_mesh(self.device.type, (self.config.ranks,))
        for layer in causal.model.layers:
            fully_shard(layer.to(self.device, torch.float32), mesh=mesh, mp_policy=policy)
        fully_shard(self.model.to(self.device, torch.float32), mesh=mesh, mp_policy=policy)
        return Facts(self.packed, attention, shape)

    def update(self, updates: list[list[list[Sample]]]) -> dict[str, float]:
        """Optimizer updates on this rank's share: [update][micro-batch][sample]. Returns global means.

        With one update pi_old is the same forward, detached (ratio 1, clipping inert). With more, it is
        computed once for all before the first.
        """
        old = (
            [[self._old(micro) for micro in update] for update in updates]
            if len(updates) > 1
            else None
        )
        totals: dict[str, float] = {}
        norms = []
        for u, update in enumerate(updates):
            self.optimizer.zero_grad(set_to_none=True)
            sums: dict[str, Tensor] = {}
            for m, micro in enumerate(update):
                for name, value in self._backward(micro, old[u][m] if old else None).items():
                    sums[name] = sums[name] + value if m else value.double()
            for name, total in self._over_ranks(sums).items():
                totals[name] = totals.get(name, 0.0) + total
            if totals["not_finite"]:
                raise FloatingPointError(
                    f"{totals['not_finite']:.0f} of the learner's log-probabilities are not finite"
                )
            norms.append(self._step())
        return _means(totals) | {
            "gradient_norm": float(np.mean(norms)),
            "learner/memory_peak_mb": self._memory_peak_mb(),
            "lr": self.optimizer.param_groups[0]["lr"],
        }

    def logprobs(self, ids: list[int]) -> list[float]:
        """The learner's log-probabilities of `ids[1:]`."""
        zeros, mask = np.zeros(len(ids)), np.arange(len(ids)) > 0
        batch = collate([Sample(np.array(ids), mask, zeros, 0.0, 0.0)], self.packed).to(self.device)
        with torch.no_grad():
            return self.model(batch)[0][0, 1:].tolist()

    def publish(self, directory: Path, version: int, dtype: str) -> Path | None:
        """Write the weights for the engines (rank 0; the others only take part in gathering)."""
        state = self._whole_state()
        return publish(state, directory, version, dtype) if self.rank == 0 else None

    def transfer(self, meeting: Meeting, dtype: str) -> None:
        """Send the weights to the engines' devices."""
        send(self.model.model, dtype, meeting, self.rank)

    def export(self, directory: Path, dtype: str) -> None:
        """Write an ordinary Hugging Face model directory, tokenizer and chat template included."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        state = self._whole_state()
        if self.rank != 0:
            return
        model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=getattr(torch, dtype))
        model.load_state_dict(state, strict=not model.config.tie_word_embeddings)
        model.save_pretrained(directory)
        AutoTokenizer.from_pretrained(self.model_dir).save_pretrained(directory)

    def save(self, directory: Path) -> None:
        """Model, optimizer, schedule and RNG, sharded; loadable by another number of ranks."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=directory / "shards")
        if self.rank == 0:
            rng = torch.get_rng_state().numpy().tobytes().hex()
            (directory / "learner.json").write_text(
                json.dumps({"schedule_step": self.schedule_step, "rng": rng})
            )

    def load(self, directory: Path) -> None:
        """Take up a checkpoint."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=directory / "shards")
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        record = json.loads((directory / "learner.json").read_text())
        self.schedule_step = record["schedule_step"]
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(record["rng"]), dtype=torch.uint8))

    def _backward(self, micro: list[Sample], old: Tensor | None) -> dict[str, Tensor]:
        batch = self._collate(micro)
        logprobs, entropies = self.model(batch)
        loss, sums = policy_loss(
            logprobs, logprobs.detach() if old is None else old, batch, self.loss_config
        )
        (loss * self.config.ranks).backward()
        return sums | {
            "entropy": (entropies * batch.mask).sum(),
            "loss": loss.detach(),
            "not_finite": (~torch.isfinite(logprobs)).sum(),
        }

    def _old(self, micro: list[Sample]) -> Tensor:
        with torch.no_grad():
            return self.model(self._collate(micro))[0]

    def _collate(self, micro: list[Sample]) -> TokenBatch:
        return collate(micro, self.packed).to(self.device)

    def _step(self) -> float:
        norm = nn.utils.clip_grad_norm_(
            self.model.parameters(), self.optimizer_config.gradient_clip
        )
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient norm is {norm.item()}")
        self.schedule_step += 1
        warmup = self.optimizer_config.warmup_steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer_config.lr * min(1.0, self.schedule_step / max(1, warmup))
        self.optimizer.step()
        return norm.item()

    def _memory_peak_mb(self) -> float:
        """Of this process's tensors on a GPU, of the whole process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    def _over_ranks(self, sums: dict[str, Tensor]) -> dict[str, float]:
        names = sorted(sums)
        total = torch.stack([sums[name].double() for name in names])
        dist.all_reduce(total)
        return dict(zip(names, total.tolist(), strict=True))

    def _whole_state(self) -> dict[str, Tensor]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(self.model, options=options)
        return {name.removeprefix("model."): tensor for name, tensor in state.items()}


def _means(totals: dict[str, float]) -> dict[str, float]:
    """From sums over all learned tokens of all ranks to figures a token."""
    tokens = max(1.0, totals["tokens"])
    return {
        "loss": totals["loss"],
        "learned_tokens": totals["tokens"],
        "mismatch_kl": totals["mismatch_kl"] / tokens,
        "entropy": totals["entropy"] / tokens,
        "clip_fraction": totals["clipped"] / tokens,
        "importance_capped_fraction": totals["importance_capped"] / tokens,
    }
