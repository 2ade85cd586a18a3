"""What a run came to: `runs/<run name>/summary.json` for scripts, a table for people.

Made from the stages' own manifests and status files, so a failed or running run has one too.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

from tasks.spec import StageSpec
from tasks.stage import Stage, stage_dir, write_atomic


class StageSummary(BaseModel):
    """One stage. A figure that the stage does not have is null."""

    name: str
    status: str = Field(description="completed | running | failed | stopped | pending")
    outcome: str | None = Field(None, description="of this run: Completed | Resumed | Reused | Failed")
    error: str | None = None
    fingerprint: str
    directory: str
    seconds: float = 0.0
    steps: int = 0
    reward_first5: float | None = Field(None, description="mean reward of the first five steps")
    reward_last5: float | None = None
    accuracy: float | None = Field(None, description="avg@k on held-out problems after this stage")
    accuracy_stderr: float | None = None
    tool_error_rate_correct: float | None = Field(None, description="in correct rollouts, before selection")
    mean_tokens: float | None = None
    stop_reasons: dict[str, int] = Field(default_factory=dict)
    engine: str | None = Field(None, description="engine class")
    vllm_version: str | None = None
    isolation: str | None = Field(None, description="as the sandbox's responses report it")
    sandbox_calls: int | None = None
    weight_version: int | None = None
    mlflow_run_id: str | None = None
    results: dict[str, Any] = Field(default_factory=dict, description="all that the stage reported")
    ran_on: dict[str, Any] = Field(default_factory=dict)


class Summary(BaseModel):
    """One run of the pipeline."""

    run: str
    profile: str
    status: str = Field(description="running | completed | failed | stopped")
    seconds: float = Field(description="wall time of this run")
    mlflow_uri: str
    mlflow_run_id: str | None
    stages: list[StageSummary]


def summarize_stage(runs_dir: Path, spec: StageSpec, outcome: str | None) -> StageSummary:
    directory = stage_dir(runs_dir, spec.stage, spec.fingerprint)
    summary = StageSummary(
        name=spec.stage,
        status="pending",
        outcome=outcome,
        fingerprint=spec.fingerprint,
        directory=str(directory),
    )
    stage = Stage(directory, spec)
    manifest, status = stage.manifest(), stage.status()
    known = manifest or status
    if known is None:
        return summary
    summary.status = known.status
    summary.seconds = known.seconds
    summary.results, summary.ran_on = known.results, known.ran_on
    summary.mlflow_run_id = known.mlflow_run_id
    summary.steps = manifest.steps if manifest is not None else status.step if status is not None else 0
    summary.error = (status.error or None) if manifest is None and status is not None else None
    # Figures of the summary's own are taken over by name; the rest stays in `results` and `ran_on`.
    for name, value in (known.results | known.ran_on).items():
        if name in _FIGURES:
            setattr(summary, name, value)
    return summary


_FIGURES = {
    "steps", "reward_first5", "reward_last5", "accuracy", "accuracy_stderr", "tool_error_rate_correct",
    "mean_tokens", "stop_reasons", "engine", "vllm_version", "isolation", "sandbox_calls", "weight_version",
}  # fmt: skip


def write(summary: Summary, path: Path) -> None:
    write_atomic(path, summary.model_dump_json(indent=2))


def table(summary: Summary, width: int = 110) -> str:
    """The summary as a table of text."""
    grid = Table(title=f"{summary.run} ({summary.profile}): {summary.status}", title_justify="left")
    headings = ("stage", "outcome", "seconds", "steps", "reward first → last 5", "accuracy", "tool errors", "tokens")
    for number, heading in enumerate(headings):
        grid.add_column(heading, justify="left" if number < 2 else "right", no_wrap=True)
    for stage in summary.stages:
        grid.add_row(
            stage.name,
            (stage.outcome or stage.status).lower(),
            f"{stage.seconds:.0f}" if stage.seconds else "",
            str(stage.steps or ""),
            _pair(stage.reward_first5, stage.reward_last5),
            _accuracy(stage),
            _percent(stage.tool_error_rate_correct),
            "" if stage.mean_tokens is None else f"{stage.mean_tokens:.0f}",
        )
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(grid)
    return out.getvalue().rstrip()


def _pair(first: float | None, last: float | None) -> str:
    return "" if first is None or last is None else f"{first:.3f} → {last:.3f}"


def _accuracy(stage: StageSummary) -> str:
    if stage.accuracy is None:
        return ""
    error = "" if stage.accuracy_stderr is None else f" ± {100 * stage.accuracy_stderr:.1f}"
    return f"{100 * stage.accuracy:.1f}{error} %"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
