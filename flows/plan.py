"""What a run would do: for each stage, whether it is reused, resumed or run, and which key made it stale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.spec import StageSpec, changed_keys
from tasks.stage import Stage, stage_dir


@dataclass(frozen=True)
class Planned:
    """The plan for one stage; `changed` is against the stage that the run of this name had before."""

    stage: str
    fingerprint: str
    action: str
    changed: list[str]


def plan(runs_dir: Path, run_name: str, specs: dict[str, StageSpec]) -> list[Planned]:
    return [
        Planned(name, spec.fingerprint, _action(runs_dir, spec), changed(runs_dir, run_name, spec))
        for name, spec in specs.items()
    ]


def changed(runs_dir: Path, run_name: str, spec: StageSpec) -> list[str]:
    """Keys that differ from the stage that runs/<run name>/<stage> points at."""
    before = runs_dir / run_name / spec.stage
    if not (before / "spec.json").is_file():
        return []
    return changed_keys(Stage.open(before).spec, spec)


def _action(runs_dir: Path, spec: StageSpec) -> str:
    stage = Stage(stage_dir(runs_dir, spec.stage, spec.fingerprint), spec)
    if stage.manifest() is not None:
        return "reused"
    damage = stage.damage()
    if damage:
        return f"run again ({damage[0]})"
    step = stage.checkpoint_step()
    return f"resumed at step {step}" if step else "run"
