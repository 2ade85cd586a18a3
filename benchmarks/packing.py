"""What is computed for nothing when a batch of rollouts is learned: padding, and ranks that wait.

    longest   every rollout padded to the longest of the batch
    padded    micro-batches of rollouts of about the same length
    packed    rows of whole rollouts, end to end

on lengths as the report gives them (responses of 8K tokens in the mean, cut at 12K) and as they are at the
beginning (1K in the mean, the same cut, a longer tail). No model runs: this is the planner that the learner
calls, with the costs of a 14B model.

    python -m benchmarks.packing [--seeds 3]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.outcome import finish
from rl.logprobs import ModelShape
from rl.packing import plan

CAP = 12_288
PROMPT = (150, 600)  # tokens, from and to
BUDGET_TOKENS = 16_384
MODEL = ModelShape(body=13_200_000_000, head=778_000_000, layers=40, attention_width=5120)


@dataclass(frozen=True)
class Case:
    """Lengths are lognormal, then cut; `mean` is of what the cut leaves."""

    name: str
    mean: float
    sigma: float
    rollouts: int
    ranks: int


CASES = [
    Case("report, 512 × 16, 32 ranks", 8192, 0.5, 8192, 32),
    Case("report, 512 × 16, 8 ranks", 8192, 0.5, 8192, 8),
    Case("report, longer tail, 8 ranks", 8192, 1.0, 8192, 8),
    Case("report, 32 × 16, 8 ranks", 8192, 0.5, 512, 8),
    Case("beginning, 512 × 16, 32 ranks", 1024, 1.0, 8192, 32),
    Case("beginning, 32 × 16, 8 ranks", 1024, 1.0, 512, 8),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print(
        f"{'':32}{'layout':10}{'padding':>9}{'waiting':>9}{'micro-batches':>15}{'planned in s':>14}"
    )
    rows, slowest_s = [], 0.0
    for case in CASES:
        lengths = [_lengths(case, seed) for seed in range(seeds)]
        longest = float(np.mean([1 - np.mean(ns) / max(ns) for ns in lengths]))
        print(f"{case.name:32}{'longest':10}{longest:9.2%}")
        figures = {"longest": {"padding_share": round(longest, 4)}}
        for layout in ("padded", "packed"):
            began = time.monotonic()
            plans = [
                plan(ns, case.ranks, BUDGET_TOKENS, layout == "packed", MODEL.training_flops)
                for ns in lengths
            ]
            seconds = (time.monotonic() - began) / seeds
            slowest_s = max(slowest_s, seconds)
            padding = float(np.mean([p.padding_share for p in plans]))
            idle = float(np.mean([p.idle_share for p in plans]))
            micros = float(np.mean([len(p.micro_batches[0]) for p in plans]))
            print(f"{'':32}{layout:10}{padding:9.2%}{idle:9.2%}{micros:15.1f}{seconds:14.2f}")
            figures[layout] = {"padding_share": round(padding, 5), "idle_share": round(idle, 5)}
        rows.append({"case": case.name, **figures})
    worst = {
        layout: max(row[layout]["padding_share"] for row in rows)
        for layout in ("longest", "padded", "packed")
    }
    finish(
        "packing",
        {
            "ratio": round(1 / (1 - rows[0]["longest"]["padding_share"]), 3),
            "worst_padding_share": worst,
            "plan_s": round(slowest_s, 2),
            "cases": rows,
        },
        "worst padding under 0.05 padded and packed; ratio = tokens computed padded to the longest / packed, "
        "first case",
    )


def _lengths(case: Case, seed: int) -> list[int]:
    """Prompt and response. The median is found by bisection, so that the mean after the cut is the case's."""
    rng = np.random.default_rng(seed)
    spread = np.exp(case.sigma * rng.normal(size=case.rollouts))
    low, high = 0.0, 100.0 * CAP
    for _ in range(60):
        median = (low + high) / 2
        if np.minimum(median * spread, CAP).mean() < case.mean:
            low = median
        else:
            high = median
    responses = np.minimum(low * spread, CAP).astype(int) + 1
    return (responses + rng.integers(*PROMPT, case.rollouts)).tolist()


if __name__ == "__main__":
    main()
