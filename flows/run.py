"""A run of the pipeline while it runs: its directory, its MLflow run, its stages one after another.

    runs/<run name>/   config.yaml (resolved), summary.json, and a link to each stage's directory

Invariant: summary.json is rewritten before and after each stage, so it tells the truth about a run that
failed or was killed.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import TracebackType

import yaml

from flows import summary
from flows.config import PipelineConfig
from sandbox.errors import UserError
from tasks.launch import run_stage, say
from tasks.spec import StageSpec
from tasks.stage import Stage, stage_dir, write_atomic
from tasks.track import PipelineTrack, StageTrack

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
RESERVED = ("stages", "mlartifacts", "mlflow.db")


MODEL_STAGES = ("rl3", "rl2", "rl1", "sft")  # the newest first


class StageFailed(Exception):
    """A stage did not finish; the message is for the user."""


class Run:
    """One run of `specs`, in order."""

    def __init__(
        self,
        name: str,
        profile: str,
        config: PipelineConfig,
        specs: dict[str, StageSpec],
    ) -> None:
        if not RUN_NAME.fullmatch(name) or name in RESERVED:
            raise UserError(
                f"run_name '{name}': expected letters, digits, '_', '.' and '-', starting with a letter or digit, "
                f"and none of {', '.join(RESERVED)}"
            )
        self.name, self.profile, self.config, self.specs = name, profile, config, specs
        self.runs_dir = config.runs_path
        self.dir = self.runs_dir / name
        self.dir.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        self._outcomes: dict[str, str] = {}
        self._status = "running"
        artifacts = self.runs_dir / "mlartifacts"
        self._mlflow = PipelineTrack(config.tracking_uri, config.track.experiment, name, artifacts)

    def __enter__(self) -> Run:
        resolved = self.dir / "config.yaml"
        text = yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False)
        write_atomic(resolved, f"# resolved configuration of run {self.name}, profile {self.profile}\n{text}")
        self._mlflow.artifact(resolved, say)
        self._summarize()
        return self

    def stage(self, name: str) -> Path:
        """Run stage `name` to its end; its directory."""
        stage, track = self._prepare(self.specs[name])
        self._link(name, stage.dir)
        self._summarize()
        state = run_stage(name, stage.dir, track, return_state=True)
        self._outcomes[name] = state.name or ""
        self._summarize()
        if not state.is_completed():
            raise StageFailed(state.message)
        return stage.dir

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._status, mlflow_status = "completed", "FINISHED"
        elif isinstance(error, Exception):
            self._status, mlflow_status = "failed", "FAILED"
        else:
            self._status, mlflow_status = "stopped", "KILLED"
        self._summarize()
        self._mlflow.artifact(self.dir / "summary.json", say)
        self._mlflow.close(mlflow_status, self._note(), say)
        say(self.closing())

    def closing(self) -> str:
        """The table, and where everything is."""
        lines = [summary.table(self.summary()), ""]
        report = self.dir / "report"
        if report.is_dir():
            lines.append(f"report and plots  {_shown(report / 'outputs')}")
        # evaluate's copy is checked and carries the sampling settings
        stages = ("evaluate", *MODEL_STAGES)
        model = next((self.dir / name for name in stages if (self.dir / name / "outputs/model").is_dir()), None)
        if model is not None:
            lines.append(f"exported model    {_shown(model / 'outputs/model')}")
        lines.append(f"MLflow            {self.config.tracking_uri} (run {self._mlflow.run_id})")
        lines.append(f"summary           {_shown(self.dir / 'summary.json')}")
        return "\n".join(lines)

    def summary(self) -> summary.Summary:
        return summary.Summary(
            run=self.name,
            profile=self.profile,
            status=self._status,
            seconds=round(time.monotonic() - self._started, 1),
            mlflow_uri=self.config.tracking_uri,
            mlflow_run_id=self._mlflow.run_id,
            stages=[
                summary.summarize_stage(self.runs_dir, spec, self._outcomes.get(name))
                for name, spec in self.specs.items()
            ],
        )

    def _summarize(self) -> None:
        summary.write(self.summary(), self.dir / "summary.json")

    def _prepare(self, spec: StageSpec) -> tuple[Stage, StageTrack | None]:
        """The stage's directory, and its MLflow run unless it is finished."""
        directory = stage_dir(self.runs_dir, spec.stage, spec.fingerprint)
        if Stage(directory, spec).manifest() is not None:
            stage = Stage.open(directory)
            self._mlflow.finished(stage.spec, directory, say)
            return stage, None
        track = self._mlflow.stage(spec, directory)
        return Stage.prepare(self.runs_dir, spec.model_copy(update={"mlflow_run_id": track.run_id})), track

    def _link(self, name: str, directory: Path) -> None:
        """Point runs/<run name>/<stage> at the stage's directory."""
        link = self.dir / name
        if link.is_symlink():
            if link.resolve() == directory:
                return
            link.unlink()
        link.symlink_to(Path("..") / "stages" / directory.name)

    def _note(self) -> str:
        lines = [
            f"- {name}: {self._outcomes.get(name, 'not run').lower()} "
            f"({stage_dir(self.runs_dir, name, spec.fingerprint).name})"
            for name, spec in self.specs.items()
        ]
        return "\n".join([f"Profile {self.profile}.", *lines])


def _shown(path: Path) -> str:
    """As a user in the working directory would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
