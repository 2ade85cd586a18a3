"""How fast the learner learns: tokens/s and model FLOP utilisation of its real ranks, by layout.

Random weights in the shape of a known model, random rollouts of the report's lengths, the whole update
(forward, backward, clipping, optimizer) through the same group of Ray actors that a stage uses. Utilisation
counts what a model needs, not what activation checkpointing computes again.

    python -m benchmarks.learner                                     on this CPU, a toy
    python -m benchmarks.learner --device cuda --size 1.5b --tokens 12288 --budget 24576
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.outcome import finish
from rl import cluster
from rl.config import ClusterConfig, LearnerConfig, LossConfig, OptimizerConfig
from rl.learners import LearnerGroup
from rl.samples import Sample, token_weights

# Qwen2.5's shapes; hidden, layers, heads, key-value heads, mlp, vocabulary
SIZES = {
    "toy": (128, 4, 4, 2, 384, 4096),
    "0.5b": (896, 24, 14, 2, 4864, 151_936),
    "1.5b": (1536, 28, 12, 2, 8960, 151_936),
}
PEAK_TFLOPS = {
    "H100": 989,
    "H200": 989,
    "A100": 312,
    "B200": 2250,
    "L40S": 362,
}  # bfloat16, dense, data sheet
PROMPT_SHARE = 0.04  # of a rollout; not learned
SIGMA, CAP = 0.5, 1.5  # lengths are lognormal, cut at this multiple of their mean


@dataclass(frozen=True)
class Row:
    """One layout. Figures a GPU (or CPU process), of the fastest update after the first."""

    layout: str
    attention: str
    seconds: float
    tokens_per_s: float
    mfu: float
    padding_share: float
    idle_share: float
    memory_peak_mb: float


def main() -> None:
    options = _options()
    rows = asyncio.run(_measure(options))
    print(
        f"\n{'layout':10}{'attention':20}{'s':>8}{'tokens/s':>12}{'MFU':>8}{'padding':>9}{'waiting':>9}{'MiB':>9}"
    )
    for row in rows:
        print(
            f"{row.layout:10}{row.attention:20}{row.seconds:8.2f}{row.tokens_per_s:12,.0f}{row.mfu:8.1%}"
            f"{row.padding_share:9.1%}{row.idle_share:9.1%}{row.memory_peak_mb:9,.0f}"
        )
    by_layout = {row.layout: row for row in rows}
    finish(
        f"learner-{options.size}-{options.device}",
        {
            "ratio": round(by_layout["padded"].seconds / by_layout["packed"].seconds, 3),
            "rows": [vars(row) for row in rows],
            "options": vars(options),
        },
        "ratio (padded / packed seconds) at least 1; MFU at least 0.45 at 1.5b and 12,288 tokens on a GPU",
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=list(SIZES), default="toy")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256, help="mean length of a rollout")
    parser.add_argument("--rollouts", type=int, default=64, help="of an update")
    parser.add_argument("--budget", type=int, default=2048, help="tokens of a micro-batch")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument(
        "--attention", default="auto", help="of the packed layout; see learner.attention"
    )
    parser.add_argument(
        "--keep-activations", action="store_true", help="no activation checkpointing"
    )
    parser.add_argument(
        "--peak-tflops", type=float, help="of the device; unset: data sheet, else measured"
    )
    return parser.parse_args()


async def _measure(options: argparse.Namespace) -> list[Row]:
    peak = (options.peak_tflops or _peak_tflops(options.device)) * 1e12
    place = ClusterConfig(device=options.device, object_store_mb=512)
    cluster.start(place)
    batch = _batch(options)
    with tempfile.TemporaryDirectory() as directory:
        _build(SIZES[options.size], 4 * options.tokens, options.device).save_pretrained(directory)
        return [
            await _layout(Path(directory), options, place, batch, packing, peak)
            for packing in ("padded", "packed")
        ]


async def _layout(
    model_dir: Path,
    options: argparse.Namespace,
    place: ClusterConfig,
    batch: list[Sample],
    packing: Any,
    peak: float,
) -> Row:
    config = LearnerConfig(
        ranks=options.ranks,
        dtype="bfloat16" if options.device == "cuda" else "float32",
        micro_batch_tokens=options.budget,
        packing=packing,
        attention=options.attention if packing == "packed" else "auto",
        activation_checkpointing=not options.keep_activations,
        threads=max(1, torch.get_num_threads() // options.ranks),
    )
    learner = LearnerGroup(model_dir, config, OptimizerConfig(), LossConfig(), place, seed=0)
    await learner.start()
    shape = learner.facts.shape
    flops = sum(shape.training_flops(len(s.ids), int(s.mask.sum())) for s in batch)
    seconds = []
    for _ in range(1 + options.updates):
        began = time.monotonic()
        stats = await learner.update([batch])
        seconds.append(time.monotonic() - began)
    learner.close()
    fastest = min(seconds[1:])  # a busy machine only ever adds
    return Row(
        layout=packing,
        attention=learner.facts.attention,
        seconds=round(fastest, 3),
        tokens_per_s=round(sum(len(s.ids) for s in batch) / fastest / options.ranks, 1),
        mfu=round(flops / fastest / options.ranks / peak, 4),
        padding_share=round(stats["learner/padding_share"], 4),
        idle_share=round(stats["learner/idle_share"], 4),
        memory_peak_mb=round(stats["learner/memory_peak_mb"]),
    )


def _batch(options: argparse.Namespace) -> list[Sample]:
    rng = np.random.default_rng(0)
    raw = rng.lognormal(0, SIGMA, options.rollouts)
    lengths = np.minimum(raw / raw.mean(), CAP) * options.tokens
    lengths = np.maximum(16, lengths * options.tokens / lengths.mean()).astype(int)
    masks = [(np.arange(n) >= max(1, PROMPT_SHARE * n)).astype(np.int8) for n in lengths]
    weights = token_weights([int(mask.sum()) for mask in masks], [0] * len(masks), "batch")
    vocabulary = SIZES[options.size][-1]
    uniform = float(-np.log(vocabulary))  # about what random weights give every token
    return [
        Sample(
            ids=rng.integers(0, vocabulary, n),
            mask=mask,
            engine_logprobs=np.full(n, uniform, dtype=np.float32),
            advantage=float(rng.normal()),
            weight=weight,
        )
        for n, mask, weight in zip(lengths, masks, weights, strict=True)
    ]


def _build(size: tuple[int, ...], positions: int, device: str) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    hidden, layers, heads, kv_heads, mlp, vocabulary = size
    config = Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=mlp,
        vocab_size=vocabulary,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16 if device == "cuda" else torch.float32)


def _peak_tflops(device: str) -> float:
    """The data sheet's, where it is known; else what a large matrix product reaches."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
        known = [peak for part, peak in PEAK_TFLOPS.items() if part in name]
        if known:
            return known[0]
    n = 2048 if device == "cpu" else 8192
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    a, b = (torch.rand(n, n, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(5):
        began = time.monotonic()
        float((a @ b)[0, 0])  # reading a number waits for the device
        best = max(best, 2 * n**3 / (time.monotonic() - began) / 1e12)
    return best


if __name__ == "__main__":
    main()
