"""The learner: FSDP2 ranks as Ray actors, and the group that the trainer talks to.

Each rank holds a shard of float32 master weights and optimizer state. Loss weights are global (see
`rl/loss.py`), so gradients of micro-batches and ranks are *added*; FSDP averages over ranks, which the
factor `ranks` on the loss undoes. A batch in which every group was rejected never gets here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rl.config import LearnerConfig, LossConfig, OptimizerConfig
from rl.loss import TokenBatch, policy_loss
from rl.weights import publish


@dataclass(frozen=True)
class Sample:
    """One kept rollout, ready to be learned. Arrays are [T]: prompt and response together."""

    ids: np.ndarray
    mask: np.ndarray  # 1 on tokens that the model sampled
    engine_logprobs: np.ndarray
    advantage: float
    weight: float  # of each of its learned tokens, see rl.loss.token_weights


class LogProbs(nn.Module):
    """A causal LM that returns log-probabilities and entropies of the next token, in chunks.

    The logits of the whole batch never exist at once: each chunk of positions is projected, reduced and
    projected again in the backward pass.
    """

    def __init__(self, model: nn.Module, chunk_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.chunk_tokens = chunk_tokens

    def forward(self, ids: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
        """ids, attention: [B, T]. Both results are [B, T], float32, 0 at position 0: entry t is about
        token t given the tokens before it."""
        body, head = self.model.model, self.model.lm_head
        hidden = body(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        flat, targets = hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        logprobs, entropies = [], []
        for start in range(0, len(targets), self.chunk_tokens):
            part = slice(start, start + self.chunk_tokens)
            logprob, entropy = checkpoint(_project, head, flat[part], targets[part], use_reentrant=False)
            logprobs.append(logprob)
            entropies.append(entropy)
        shape = (ids.shape[0], ids.shape[1] - 1)
        return (
            nn.functional.pad(torch.cat(logprobs).view(shape), (1, 0)),
            nn.functional.pad(torch.cat(entropies).view(shape), (1, 0)),
        )


def _project(head: nn.Module, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    scores = head(hidden).float().log_softmax(-1)
    entropy = -(scores.detach().exp() * scores.detach()).sum(-1)
    return scores.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


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

    def setup(self, address: str, port: int) -> None:
        """Join the group and shard the model."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from transformers import AutoModelForCausalLM

        os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=self.rank, world_size=self.config.ranks)
        causal = AutoModelForCausalLM.from_pretrained(
            self.model_dir, dtype=torch.float32, attn_implementation="sdpa"
        )
        if self.config.activation_checkpointing:
            causal.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = LogProbs(causal, self.config.logprob_chunk).to(self.device)
        self.model.train()
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if self.config.dtype == "bfloat16" else None,
            reduce_dtype=torch.float32,
        )
        mesh = dist.init_device_mesh(self.device.type, (self.config.ranks,))
        for layer in causal.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        chosen = self.optimizer_config
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=chosen.lr,
            betas=(chosen.beta1, chosen.beta2),
            weight_decay=chosen.weight_decay,
        )

    def update(self, updates: list[list[list[Sample]]]) -> dict[str, float]:
        """Optimizer updates on this rank's share: [update][micro-batch][sample]. Returns global means.

        With one update pi_old is the same forward, detached (ratio 1, clipping inert). With more, it is
        computed once for all before the first.
        """
        old = [[self._old(micro) for micro in update] for update in updates] if len(updates) > 1 else None
        sums: dict[str, float] = {}
        norms = []
        for u, update in enumerate(updates):
            self.optimizer.zero_grad(set_to_none=True)
            for m, micro in enumerate(update):
                for name, value in self._backward(micro, old[u][m] if old else None).items():
                    sums[name] = sums.get(name, 0.0) + value
            norms.append(self._step())
        return self._means(sums) | {
            "gradient_norm": float(np.mean(norms)),
            "lr": self.optimizer.param_groups[0]["lr"],
        }

    def logprobs(self, ids: list[int]) -> list[float]:
        """The learner's log-probabilities of `ids[1:]`."""
        row = torch.tensor([ids], device=self.device)
        with torch.no_grad():
            return self.model(row, torch.ones_like(row))[0][0, 1:].tolist()

    def publish(self, directory: Path, version: int, dtype: str) -> Path | None:
        """Write the weights for the engines (rank 0; the others only take part in gathering)."""
        state = self._whole_state()
        return publish(state, directory, version, dtype) if self.rank == 0 else None

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

    def _backward(self, micro: list[Sample], old: Tensor | None) -> dict[str, float]:
        batch = collate(micro).to(self.device)
        logprobs, entropies = self.model(batch.ids, batch.attention)
        if not torch.isfinite(logprobs).all():
            raise FloatingPointError("the learner's log-probabilities are not finite")
        loss, sums = policy_loss(logprobs, logprobs.detach() if old is None else old, batch, self.loss_config)
        (loss * self.config.ranks).backward()
        sums["entropy"] = float((entropies * batch.mask).sum())
        sums["loss"] = loss.item()
        sums["padded"] = float((1 - batch.attention).sum())
        sums["computed"] = float(batch.attention.numel())
        return sums

    def _old(self, micro: list[Sample]) -> Tensor:
        batch = collate(micro).to(self.device)
        with torch.no_grad():
            return self.model(batch.ids, batch.attention)[0]

    def _step(self) -> float:
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.optimizer_config.gradient_clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient norm is {norm.item()}")
        self.schedule_step += 1
        warmup = self.optimizer_config.warmup_steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer_config.lr * min(1.0, self.schedule_step / max(1, warmup))
        self.optimizer.step()
        return norm.item()

    def _means(self, sums: dict[str, float]) -> dict[str, float]:
        names = sorted(sums)
        total = torch.tensor([sums[name] for name in names], dtype=torch.float64)
        if self.config.ranks > 1:
            total = total.to(self.device)
            dist.all_reduce(total)
        whole = dict(zip(names, total.tolist(), strict=True))
        tokens = max(1.0, whole["tokens"])
        means = {f"{name}": whole[name] / tokens for name in ("mismatch_kl", "entropy")}
        means["clip_fraction"] = whole["clipped"] / tokens
        means["importance_capped_fraction"] = whole["importance_capped"] / tokens
        means["padding_fraction"] = whole["padded"] / max(1.0, whole["computed"])
        return means | {"loss": whole["loss"], "learned_tokens": whole["tokens"]}

    def _whole_state(self) -> dict[str, Tensor]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(self.model, options=options)
        return {name.removeprefix("model."): tensor for name, tensor in state.items()}


def collate(samples: list[Sample]) -> TokenBatch:
    """Right-pad. An empty micro-batch becomes two dummy tokens of weight 0, so that its forward and
    backward pass still take part in the collectives."""
    if not samples:
        empty = np.zeros(2)
        samples = [Sample(empty.astype(np.int64), empty, empty, 0.0, 0.0)]
    longest = max(len(sample.ids) for sample in samples)

    def padded(rows: list[np.ndarray], dtype: torch.dtype) -> Tensor:
        out = torch.zeros(len(rows), longest, dtype=dtype)
        for i, row in enumerate(rows):
            out[i, : len(row)] = torch.tensor(row, dtype=dtype)
        return out

    mask = padded([s.mask for s in samples], torch.float32)
    return TokenBatch(
        ids=padded([s.ids for s in samples], torch.int64),
        attention=padded([np.ones(len(s.ids)) for s in samples], torch.int64),
        mask=mask,
        advantages=mask * torch.tensor([[s.advantage] for s in samples], dtype=torch.float32),
        weights=mask * torch.tensor([[s.weight] for s in samples], dtype=torch.float32),
        engine_logprobs=padded([s.engine_logprobs for s in samples], torch.float32),
    )
