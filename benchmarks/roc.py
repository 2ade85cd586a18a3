"""What Resample on Correct does to tool errors: three ways to train, the same seeds, the demo's model.

    grpo-G    G rollouts a prompt, all learned
    grpo-2G   2G rollouts a prompt, all learned
    roc       2G rollouts a prompt, G learned, chosen by RoC

Everything else is the demo's stage rl1, but for budgets so wide that a failed call costs the model nothing
by itself, as with the report's: where a cap punishes it, every way of training unlearns it. Reported over
*all sampled* correct rollouts, before selection, and on the held-out problems after training.

    python -m benchmarks.roc [--steps 30] [--seeds 3]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks.outcome import finish
from benchmarks.training import train_rl1
from flows.config import PipelineConfig, load

LAST = 10  # steps
WIDE = {"response_tokens": 320, "turns": 6}
VARIANTS = {
    "grpo-G": {"rollouts": 8, "kept": 8, "selection": "all"},
    "grpo-2G": {"rollouts": 16, "kept": 16, "selection": "all"},
    "roc": {"rollouts": 16, "kept": 8, "selection": "roc"},
}


@dataclass(frozen=True)
class Result:
    """One training run. Rates are shares of tool calls."""

    reward: float  # of the last steps
    sampled_error_rate_correct: float  # of the last steps
    sampled_error_rate_correct_whole: float  # of all steps: how fast errors go
    held_out_error_rate: float
    held_out_error_rate_correct: float
    accuracy: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    results: dict[str, list[Result]] = {name: [] for name in VARIANTS}
    for seed in range(options.seeds):
        for name, roc in VARIANTS.items():
            config = load("demo", {"rl": {"rl1": {"steps": options.steps, "roc": roc, "rollout": WIDE}}})
            results[name].append(_train(config, seed))
            print(f"{name:8} seed {seed}: {results[name][-1]}", flush=True)
    _print_table(results, options.seeds)
    figures = {
        name: {field: _mean_spread(rows, field) for field in Result.__dataclass_fields__}
        for name, rows in results.items()
    }
    finish(
        "roc",
        {"ratios": _ratios(results), "steps": options.steps, "seeds": options.seeds, "mean_and_spread": figures},
        "both ratios below 1: the tool-error rate with roc, over the smaller of the two without",
    )


def _ratios(results: dict[str, list[Result]]) -> dict[str, float]:
    """RoC's mean over the smaller mean of the two ways without it; over training, and on held-out problems."""
    ratios = {}
    for name, field in (("sampled", "sampled_error_rate_correct_whole"), ("held_out", "held_out_error_rate")):
        means = {variant: _mean_spread(rows, field)[0] for variant, rows in results.items()}
        ratios[name] = round(means["roc"] / min(means["grpo-G"], means["grpo-2G"]), 3)
    return ratios


def _train(config: PipelineConfig, seed: int) -> Result:
    manifest, rows = train_rl1(config, seed)
    errors = [row["tool_error_rate_correct"] for row in rows]
    held_out = manifest.results["held_out"]
    return Result(
        reward=float(np.mean([row["reward"] for row in rows[-LAST:]])),
        sampled_error_rate_correct=float(np.mean(errors[-LAST:])),
        sampled_error_rate_correct_whole=float(np.mean(errors)),
        held_out_error_rate=held_out["tool_error_rate"],
        held_out_error_rate_correct=held_out["tool_error_rate_correct"],
        accuracy=held_out["accuracy"],
    )


def _mean_spread(rows: list[Result], field: str) -> tuple[float, float]:
    values = [getattr(row, field) for row in rows]
    return round(float(np.mean(values)), 4), round(float(np.std(values, ddof=1)) if len(values) > 1 else 0.0, 4)


def _print_table(results: dict[str, list[Result]], seeds: int) -> None:
    fields = list(Result.__dataclass_fields__)
    print(f"\nmean ± spread over {seeds} seeds\n{'':8}" + "".join(f"{field:>34}" for field in fields))
    for name, rows in results.items():
        cells = ["{:.4f} ± {:.4f}".format(*_mean_spread(rows, field)) for field in fields]
        print(f"{name:8}" + "".join(f"{cell:>34}" for cell in cells))


if __name__ == "__main__":
    main()
