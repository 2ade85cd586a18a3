"""Curves of a run, drawn from rows of metrics.jsonl: one panel a question, thin raw values under a short mean.

Figures are made without pyplot, so drawing needs no display and leaves no global state. Text and axes have
one ink colour, which a page replaces by its own (`inline_svg`), so that the curves follow light and dark.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

Rows = Sequence[Mapping[str, Any]]
INK, FAINT = "#24292f", "#b8bfc7"
BLUE, ORANGE, GREEN, PURPLE = (
    "#3b82f6",
    "#f0752b",
    "#2f9e6e",
    "#9a6ee0",
)  # readable on white and on black
MEAN_OVER = 5  # steps
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rstar2",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 16,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.alpha": 0.5,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
} | dict.fromkeys(
    (
        "text.color",
        "axes.edgecolor",
        "axes.labelcolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    ),
    INK,
)


@dataclass(frozen=True)
class Curve:
    """A metric in a panel."""

    key: str
    label: str
    color: str


@dataclass(frozen=True)
class Panel:
    """One question to a run."""

    name: str
    title: str
    curves: tuple[Curve, ...]
    share: bool = False  # values are shares, shown in percent
    log: bool = False


@dataclass(frozen=True)
class Mark:
    """A measured point with its standard error, at the end of a stage."""

    stage: str
    value: float
    stderr: float


REWARD = Panel(
    "reward", "Reward of all sampled rollouts", (Curve("reward", "mean reward", BLUE),), share=True
)
TOOL_ERRORS = Panel(
    "tool_errors",
    "Failed tool calls, before selection",
    (
        Curve("tool_error_rate", "in all rollouts", ORANGE),
        Curve("tool_error_rate_correct", "in correct rollouts", BLUE),
    ),
    share=True,
)
LENGTH = Panel("length", "Response length in tokens", (Curve("response_tokens", "mean", GREEN),))
CLIPPED = Panel(
    "clipped",
    "Rollouts that did not reach an answer",
    (
        Curve("stop/length", "at the length cap", PURPLE),
        Curve("stop/turn_limit", "at the turn limit", ORANGE),
        Curve("stop/tool_overflow", "tool result too long", GREEN),
    ),
    share=True,
)
GROUPS = Panel(
    "groups",
    "What became of the groups",
    (
        Curve("groups/kept", "trained on", BLUE),
        Curve("groups/solve_all", "all correct", GREEN),
        Curve("groups/solve_none", "none correct", ORANGE),
    ),
    share=True,
)
ENTROPY = Panel("entropy", "Entropy in nats a token", (Curve("entropy", "learner", PURPLE),))
LOSS = Panel(
    "sft_loss", "SFT loss on assistant tokens", (Curve("sft/loss", "loss", BLUE),), log=True
)
TOKEN_ACCURACY = Panel(
    "sft_accuracy",
    "SFT next-token accuracy",
    (Curve("sft/mean_token_accuracy", "mean", GREEN),),
    share=True,
)
RL_PANELS = (REWARD, TOOL_ERRORS, LENGTH, CLIPPED, GROUPS, ENTROPY)
SFT_PANELS = (LOSS, TOKEN_ACCURACY)


def plot_stage(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The curves of one stage, SFT or RL, as one picture (the suffix of `path` says which kind)."""
    panels = [panel for panel in (*SFT_PANELS, *RL_PANELS) if _has(rows, panel)]
    if panels:
        _save(_grid({"": rows}, panels), path)


def plot_run(stages: Mapping[str, Rows], marks: Sequence[Mark], path: Path) -> None:
    """The four curves that tell an RL run, its stages one after another on one axis."""
    _save(_grid(stages, (REWARD, TOOL_ERRORS, LENGTH, CLIPPED), marks), path)


def panel_svg(stages: Mapping[str, Rows], panel: Panel, marks: Sequence[Mark] = ()) -> str | None:
    """One panel as inline SVG for a page; None if no stage has its numbers."""
    if not any(_has(rows, panel) for rows in stages.values()):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.1), layout="constrained")
        draw(figure.add_subplot(), panel, stages, marks)
    return inline_svg(figure, panel.title)


def draw(axes: Axes, panel: Panel, stages: Mapping[str, Rows], marks: Sequence[Mark] = ()) -> None:
    """Draw a panel, each stage beginning where the one before it ended."""
    start = 0
    named: set[Curve] = set()  # those that the legend has
    for name, rows in stages.items():
        for curve in panel.curves:
            having = [row for row in rows if curve.key in row["values"]]
            if having:
                steps = [start + row["step"] for row in having]
                values = [row["values"][curve.key] for row in having]
                _curve(axes, curve, steps, values, labelled=curve not in named)
                named.add(curve)
        if start:
            axes.axvline(start + 0.5, color=FAINT, linewidth=1.0, zorder=0)
        end = start + _length(rows)
        place, above = (start + end + 1) / 2, axes.get_xaxis_transform()
        axes.text(place, 1.01, name, ha="center", fontsize=9, transform=above)
        start = end
    _mark(axes, panel, stages, marks)
    _finish(axes, panel)


def inline_svg(figure: Figure, label: str) -> str:
    """The figure as an SVG element in the page's own text colour, transparent, as wide as its place."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2).replace(
        "<svg ", f'<svg role="img" aria-label="{label}" ', 1
    )


def _grid(
    stages: Mapping[str, Rows], panels: Sequence[Panel], marks: Sequence[Mark] = ()
) -> Figure:
    lines = (len(panels) + 1) // 2
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        figure = Figure(figsize=(10.5, 3.1 * lines), layout=layout, facecolor="white")
        for number, panel in enumerate(panels, 1):
            draw(figure.add_subplot(lines, 2, number), panel, stages, marks)
    return figure


def _save(figure: Figure, path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=130, metadata=metadata)


def _curve(axes: Axes, curve: Curve, steps: list[int], values: list[float], labelled: bool) -> None:
    means = []
    for i in range(len(values)):
        window = values[max(0, i - MEAN_OVER + 1) : i + 1]
        means.append(sum(window) / len(window))
    label = curve.label if labelled else None
    axes.plot(steps, values, color=curve.color, linewidth=0.8, alpha=0.4)
    axes.plot(steps, means, color=curve.color, linewidth=1.8, label=label)


def _mark(axes: Axes, panel: Panel, stages: Mapping[str, Rows], marks: Sequence[Mark]) -> None:
    if panel is not REWARD or not marks:
        return
    ends = dict(zip(stages, itertools.accumulate(map(_length, stages.values())), strict=True))
    axes.errorbar(
        [
            ends.get(mark.stage, 0) for mark in marks
        ],  # a stage that is not drawn lies before the first
        [mark.value for mark in marks],
        yerr=[mark.stderr for mark in marks],
        fmt="o",
        color=ORANGE,
        markersize=5,
        capsize=3,
        label="held-out accuracy ± standard error",
        zorder=5,
    )


def _finish(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.margins(x=0.02)
    if panel.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if panel.share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) > 1 or (labels and len(panel.curves) > 1):
        axes.legend(loc="best")


def _length(rows: Rows) -> int:
    """Steps of a stage."""
    return max((row["step"] for row in rows), default=0)


def _has(rows: Rows, panel: Panel) -> bool:
    return any(curve.key in row["values"] for row in rows for curve in panel.curves)
