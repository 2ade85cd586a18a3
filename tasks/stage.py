"""A stage's directory, and the context in which its body runs.

    runs/stages/<stage>-<fingerprint>/
        spec.json      what to compute        lock          held by the child that computes it
        status.json    how far it is          checkpoints/  the body's own
        metrics.jsonl  each (key, step) once  stage.log     all output of the child
        outputs/       what later stages use  manifest.json written last: the stage is finished

Invariants: a file that is renamed into place is complete; the manifest is written after every output, so
a directory without one is unfinished, whatever else it holds; one process at a time works in a directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from sandbox.config import Section
from sandbox.errors import UserError
from tasks.signals import StopSignals
from tasks.spec import Manifest, StageSpec, StageStatus

S = TypeVar("S", bound=Section)
CHECKPOINT = re.compile(r"(?:step|checkpoint)-0*(\d+)")


@dataclass(frozen=True)
class Stage:
    """A stage directory."""

    dir: Path
    spec: StageSpec

    @classmethod
    def prepare(cls, runs_dir: Path, spec: StageSpec) -> Stage:
        """The directory of `spec`, made if there is none. Operational settings in it become those of `spec`."""
        stage = cls(stage_dir(runs_dir, spec.stage, spec.fingerprint), spec)
        stage.checkpoints.mkdir(parents=True, exist_ok=True)
        stage.outputs.mkdir(exist_ok=True)
        write_atomic(stage.dir / "spec.json", spec.model_dump_json(indent=2))
        return stage

    @classmethod
    def open(cls, directory: Path) -> Stage:
        path = directory / "spec.json"
        if not path.is_file():
            raise UserError(f"{directory} is no stage directory: it has no spec.json")
        return cls(directory.resolve(), StageSpec.model_validate_json(path.read_text()))

    @property
    def outputs(self) -> Path:
        return self.dir / "outputs"

    @property
    def checkpoints(self) -> Path:
        return self.dir / "checkpoints"

    @property
    def log_file(self) -> Path:
        return self.dir / "stage.log"

    def manifest(self) -> Manifest | None:
        """The manifest of a finished stage whose outputs are all there with their sizes, else None."""
        manifest = self._manifest()
        return None if manifest is None or self.damage() else manifest

    def damage(self) -> list[str]:
        """What is wrong with the outputs that the manifest lists; nothing without a manifest."""
        manifest, wrong = self._manifest(), []
        for name, size in manifest.outputs.items() if manifest is not None else ():
            path = self.outputs / name
            if not path.is_file():
                wrong.append(f"{name} is missing")
            elif path.stat().st_size != size:
                wrong.append(f"{name} has {path.stat().st_size} bytes instead of {size}")
        return wrong

    def _manifest(self) -> Manifest | None:
        path = self.dir / "manifest.json"
        return Manifest.model_validate_json(path.read_text()) if path.is_file() else None

    def status(self) -> StageStatus | None:
        path = self.dir / "status.json"
        return StageStatus.model_validate_json(path.read_text()) if path.is_file() else None

    def checkpoint_step(self) -> int | None:
        """Step of the newest checkpoint: a directory named step-N or checkpoint-N (temporary ones are not)."""
        if not self.checkpoints.is_dir():
            return None
        found = [CHECKPOINT.fullmatch(path.name) for path in self.checkpoints.iterdir() if path.is_dir()]
        return max((int(match[1]) for match in found if match), default=None)

    def finish(self, status: StageStatus) -> Manifest:
        """Write the manifest: from here on the stage is finished."""
        files = sorted(path for path in self.outputs.rglob("*") if path.is_file())
        for path in files:
            _fsync(path)
        manifest = Manifest(
            stage=self.spec.stage,
            fingerprint=self.spec.fingerprint,
            seconds=status.seconds,
            steps=status.step,
            results=status.results,
            ran_on=status.ran_on,
            outputs={str(path.relative_to(self.outputs)): path.stat().st_size for path in files},
            mlflow_run_id=status.mlflow_run_id,
        )
        write_atomic(self.dir / "manifest.json", manifest.model_dump_json(indent=2))
        return manifest

    def lock(self, waiting: Callable[[str], None]) -> IO[str]:
        """Hold the stage's lock until the process ends; wait for whoever holds it and say so.

        A POSIX record lock: the kernel frees it with its process, and forked helpers that outlive a killed
        process do not inherit it.
        """
        file = open(self.dir / "lock", "a+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            waiting(f"waiting: process {file.read().strip() or '?'} works in {self.dir}")
            fcntl.lockf(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file


class StageContext:
    """What a body gets: its settings, its inputs, its directories, and where its words and numbers go."""

    def __init__(
        self,
        stage: Stage,
        signals: StopSignals,
        channel: IO[str],
    ) -> None:
        self.stage = stage
        self.dir = stage.dir
        self.outputs = stage.outputs
        self.checkpoints = stage.checkpoints
        self.seed = stage.spec.seed
        self._signals = signals
        self._channel = channel
        self._started = time.monotonic()
        self._status = stage.status() or StageStatus()
        self._status.mlflow_run_id = stage.spec.mlflow_run_id
        self._seconds_before = self._status.seconds
        self._first_progress: tuple[int, float] | None = None
        self._last_step: dict[str, int] = {}
        self._metrics = self._open_metrics()
        self._set_status("running")

    # -- what to compute -----------------------------------------------------------------------------

    def section(self, model: type[S], name: str) -> S:
        """The settings `name` of this stage (see `tasks/stages.py`), validated."""
        return model.model_validate(self.setting(name))

    def setting(self, name: str) -> Any:
        """A raw value of this stage's settings."""
        if name not in self.stage.spec.sections:
            raise KeyError(f"stage {self.stage.spec.stage} has no settings '{name}': add them in tasks/stages.py")
        return self.stage.spec.sections[name]

    def input(self, upstream: str) -> Path:
        """The outputs directory of an upstream stage."""
        return self._upstream(upstream).outputs

    def input_stage(self, upstream: str) -> Path:
        """The directory of an upstream stage (its metrics.jsonl, its spec)."""
        return self._upstream(upstream).dir

    def input_manifest(self, upstream: str) -> Manifest:
        stage = self._upstream(upstream)
        manifest = stage.manifest()
        if manifest is None:
            raise UserError(f"{stage.dir}: this input of {self.stage.spec.stage} is unfinished or damaged; run again")
        return manifest

    @property
    def model_dir(self) -> Path:
        """The model that this stage starts from: one given from outside, else outputs/model of the last
        upstream stage that has one."""
        if self.stage.spec.model is not None:
            return Path(self.stage.spec.model)
        for name in reversed(self.stage.spec.inputs):
            if (self.input(name) / "model").is_dir():
                return self.input(name) / "model"
        raise UserError(f"no input of {self.stage.spec.stage} has outputs/model: {list(self.stage.spec.inputs)}")

    # -- what it says --------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        """A line for people: into stage.log, the console and the run's log."""
        for line in text.splitlines() or [""]:
            self._say(f"| {line}")

    def progress(self, step: int, total: int, **numbers: float | str) -> None:
        """`step` of `total` steps are done. The time left is estimated from this process's own pace."""
        self._signals.install()
        now = time.monotonic()
        if self._first_progress is None:
            self._first_progress = (step, now)
        first_step, first_time = self._first_progress
        pace = (now - first_time) / (step - first_step) if step > first_step else None
        line = {"step": step, "total": total, "eta_s": pace and pace * (total - step), "numbers": numbers}
        self._status.step, self._status.total = step, total
        self._set_status("running")
        self._say(f"|{json.dumps(line)}")

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Record numbers at `step`. A (key, step) that was recorded before, by a killed try, is skipped."""
        new = {key: float(value) for key, value in values.items() if step > self._last_step.get(key, -1)}
        if not new:
            return
        self._last_step |= dict.fromkeys(new, step)
        self._metrics.write(json.dumps({"step": step, "time": time.time(), "values": new}) + "\n")
        self._metrics.flush()

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Show a small file, which must stay, with the stage's MLflow run, in `folder`."""
        with (self.dir / "artifacts.jsonl").open("a") as file:
            file.write(json.dumps({"path": str(path.resolve()), "folder": folder}) + "\n")

    def result(self, **numbers: Any) -> None:
        """Figures of this stage for the manifest and the summary."""
        self._status.results |= numbers
        self._set_status("running")

    def ran_on(self, **facts: Any) -> None:
        """What ran this stage (engine class, versions, isolation, …) for the manifest and the summary."""
        self._status.ran_on |= facts
        self._set_status("running")

    # -- being stopped -------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """SIGTERM came: save if that is quick, then return `ctx.stop()` within a few seconds."""
        self._signals.install()
        return self._signals.stopping

    def stop(self) -> None:
        """End the body now, unfinished; a later run resumes it."""
        self._signals.stop()

    def catch_signals(self) -> None:
        """Take SIGTERM back from a library that replaced the handler (call it after ray.init)."""
        self._signals.install()

    # -- for the runner ------------------------------------------------------------------------------

    def close(self, status: str, error: str = "") -> None:
        """Settle the stage as `completed` (then the manifest is written), `stopped` or `failed`."""
        self._signals.settle()
        self._status.error = error
        self._set_status(status)
        self._metrics.close()
        if status == "completed":
            self.stage.finish(self._status)

    def _upstream(self, name: str) -> Stage:
        spec = self.stage.spec
        if name not in spec.inputs:
            raise KeyError(f"stage {spec.stage} has no input '{name}'; its inputs: {list(spec.inputs)}")
        return Stage.open(self.dir.parent / f"{name}-{spec.inputs[name]}")

    def _say(self, marked: str) -> None:
        print(marked, flush=True)
        try:
            self._channel.write(marked + "\n")
            self._channel.flush()
        except BrokenPipeError:
            # Whoever listened is gone; the stage must still write its last checkpoint.
            self._channel = open(os.devnull, "w")

    def _set_status(self, status: str) -> None:
        self._status.status = status
        self._status.seconds = round(self._seconds_before + time.monotonic() - self._started, 3)
        write_atomic(self.dir / "status.json", self._status.model_dump_json(indent=2), durable=False)

    def _open_metrics(self) -> IO[str]:
        path = self.dir / "metrics.jsonl"
        rows = read_metrics(path)
        # A kill may have cut the last line in half: keep the whole ones.
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
        for row in rows:
            self._last_step |= dict.fromkeys(row["values"], row["step"])
        return open(path, "a")


def stage_dir(runs_dir: Path, stage: str, fingerprint: str) -> Path:
    return runs_dir.resolve() / "stages" / f"{stage}-{fingerprint}"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows `{"step", "time", "values": {key: number}}` of a metrics.jsonl."""
    return read_jsonl(path)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a JSONL file that we write, without a last one that a kill has cut."""
    if not path.is_file():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def write_atomic(path: Path, text: str, durable: bool = True) -> None:
    """Write a file so that it is there whole or not at all; `durable` also survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    if durable:
        _fsync(temporary)
    temporary.rename(path)
    if durable:
        _fsync(path.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
