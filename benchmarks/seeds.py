"""Does the demo's rl1 raise the reward whatever the seed? First and last five-step means, and held-out accuracy.

    python -m benchmarks.seeds [--seeds 5]
"""

from __future__ import annotations

import argparse

from benchmarks.outcome import finish
from benchmarks.training import train_rl1
from flows.config import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    runs = []
    for seed in range(seeds):
        results = train_rl1(load("demo", {}), seed)[0].results
        names = ("reward_first5", "reward_last5", "accuracy", "accuracy_stderr")
        runs.append({name: round(results[name], 4) for name in names})
        print(f"seed {seed}: " + "  ".join(f"{name} {value:.3f}" for name, value in runs[-1].items()), flush=True)
    rises = sum(run["reward_last5"] > run["reward_first5"] for run in runs)
    print(f"the reward rises in {rises} of {seeds} seeds")
    finish("seeds", {"rises": rises, "of": seeds, "runs": runs}, "rises = of")


if __name__ == "__main__":
    main()
