"""The picture of the cluster benchmark: the headline case, and what the gate gains by the predicted peak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchmarks.cluster import Result

PICTURE = Path(__file__).parent.parent / "docs" / "placement.svg"


def plot(headline: Result, tuned: Sequence[Result], fresh: Sequence[Result]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "placement"  # the same figures give the same file
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 3.8), width_ratios=(2, 3), layout="constrained"
    )
    names = ["contiguous", "interleaved", "best cap", "ours"]
    seconds = {name: [o.makespan_s for o in headline.outcomes[name]] for name in names}
    left.bar(
        names,
        [np.mean(seconds[name]) for name in names],
        color=["#bbb", "#999", "#7aa6c2", "#1f6f9f"],
    )
    for i, name in enumerate(names):
        left.plot([i] * len(seconds[name]), seconds[name], "k.", markersize=4)
    left.axhline(float(np.mean(headline.lower_bound_s)), color="k", linestyle="--", linewidth=1)
    left.set_title(
        "64 engines, 16,384 rollouts: makespan, s\n(dots: seeds; dashes: lower bound)", fontsize=10
    )

    for results, marker, label in (
        (tuned, "o", "settings chosen here"),
        (fresh, "s", "fresh cases"),
    ):
        x = [result.peak / result.off_peak for result in results]
        right.plot(
            x,
            [r.gain("gate on") for r in results],
            marker,
            mfc="none",
            color="#c0392b",
            label=f"gate on, {label}",
        )
        right.plot(
            x,
            [r.gain("ours") for r in results],
            marker,
            color="#1f6f9f",
            markersize=4,
            label=f"ours, {label}",
        )
    right.axvline(1.0, color="k", linestyle=":", linewidth=1)
    right.axhline(1.0, color="k", linewidth=0.5)
    right.set_xscale("log")
    right.set_xticks([0.25, 0.5, 1.0, 2.0], ["0.25", "0.5", "1", "2"], minor=False)
    right.minorticks_off()
    right.set_xlabel("predicted peak / peak below which the gate is off")
    right.set_title("gain in makespan over static interleaved", fontsize=10)
    right.legend(fontsize=8)
    figure.savefig(PICTURE, metadata={"Date": None})
