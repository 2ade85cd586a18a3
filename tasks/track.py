"""MLflow: one run a pipeline run, one child run a stage fingerprint. The only module that imports MLflow.

It lives in the process that runs the flow; a stage child only writes files (MLflow takes seconds to import).
Invariants: runs are addressed by id, never through the fluent global run; a stage's run is found by the tag
`rstar2.key`, reopened and put under the pipeline run that works on it now; metrics.jsonl is the truth and
MLflow its copy, each (key, step) sent once, so a server that is away for a while costs nothing.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# A server that is not there must be reported in seconds; these are read when MLflow is imported.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from sandbox.errors import UserError
from tasks.spec import StageSpec, flatten
from tasks.stage import read_jsonl

logging.getLogger("mlflow").setLevel(logging.WARNING)

KEY, PIPELINE, PARENT, NOTE = "rstar2.key", "rstar2.run", "mlflow.parentRunId", "mlflow.note.content"
RETRY_S = 60.0
CONNECT_S = 5.0
BATCH = 1000  # MLflow's limit of metrics a call
FAILURES = (MlflowException, OSError)

Say = Callable[[str], None]


class PipelineTrack:
    """The MLflow run of a pipeline run."""

    def __init__(self, uri: str, experiment: str, run_name: str, artifacts: Path) -> None:
        self.uri = uri
        _probe(uri)
        try:
            self._client = MlflowClient(uri)
            self._experiment = _experiment(self._client, uri, experiment, artifacts)
            self.run_id = self._open(PIPELINE, run_name) or self._create(run_name, {PIPELINE: run_name})
        except FAILURES as error:
            raise unreachable(uri, error) from None

    def stage(self, spec: StageSpec, directory: Path) -> StageTrack:
        """The run of a stage, new or reopened, under this pipeline run."""
        key = f"{spec.stage}-{spec.fingerprint}"
        try:
            run_id = self._open(KEY, key)
            if run_id is None:
                run_id = self._create(spec.stage, {KEY: key})
                self._describe(run_id, spec)
            self._client.set_tag(run_id, PARENT, self.run_id)
            return StageTrack(self._client, self.uri, run_id, directory)
        except FAILURES as error:
            raise unreachable(self.uri, error) from None

    def finished(self, spec: StageSpec, directory: Path, say: Say) -> None:
        """A finished stage whose run is missing here or still open (its launcher was killed) is settled."""
        try:
            found = self._find(KEY, f"{spec.stage}-{spec.fingerprint}")
        except FAILURES as error:
            raise unreachable(self.uri, error) from None
        if found is None or found.info.status != "FINISHED":
            self.stage(spec, directory).close("FINISHED", say)

    def artifact(self, path: Path, say: Say) -> None:
        _log_artifact(self._client, self.uri, self.run_id, path, None, say)

    def close(self, status: str, note: str, say: Say) -> None:
        """`status` is FINISHED, FAILED or KILLED; `note` is shown with the run."""
        try:
            self._client.set_tag(self.run_id, NOTE, note)
            self._client.set_terminated(self.run_id, status)
        except FAILURES as error:
            say(f"MLflow at {shown(self.uri)}: the run stays open there: {_short(error)}")

    def _open(self, tag: str, value: str) -> str | None:
        run = self._find(tag, value)
        if run is None:
            return None
        self._client.update_run(run.info.run_id, status="RUNNING")
        return str(run.info.run_id)

    def _find(self, tag: str, value: str) -> Run | None:
        runs = self._client.search_runs([self._experiment], f"tags.`{tag}` = '{value}'", max_results=1)
        return runs[0] if runs else None

    def _create(self, name: str, tags: dict[str, str]) -> str:
        return str(self._client.create_run(self._experiment, run_name=name, tags=tags).info.run_id)

    def _describe(self, run_id: str, spec: StageSpec) -> None:
        """Parameters can be written once only: at creation."""
        flat = flatten(spec.sections) | {"seed": spec.seed, "version": spec.version}
        params = [Param(name, str(value)[:500]) for name, value in flat.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(run_id, params=params[start : start + 100])
        tags = [RunTag(f"rstar2.input.{name}", value) for name, value in spec.inputs.items()]
        self._client.log_batch(run_id, tags=tags)


class StageTrack:
    """The MLflow run of a stage: a copy of what its directory says."""

    def __init__(self, client: MlflowClient, uri: str, run_id: str, directory: Path) -> None:
        self.uri, self.run_id = uri, run_id
        self._client = client
        self._directory = directory
        self._metrics = directory / "metrics.jsonl"
        self._offset = 0  # bytes of metrics.jsonl that were read
        self._retry_at = 0.0
        self._sent = {
            key: max(metric.step for metric in client.get_metric_history(run_id, key))
            for key in client.get_run(run_id).data.metrics
        }

    def sync(self, say: Say) -> None:
        """Send what metrics.jsonl has and MLflow has not. A failure is said once and tried again later."""
        if time.monotonic() < self._retry_at or not self._metrics.is_file():
            return
        rows, offset = self._rows()
        new = [
            Metric(key, value, int(row["time"] * 1000), row["step"])
            for row in rows
            for key, value in row["values"].items()
            if row["step"] > self._sent.get(key, -1)
        ]
        try:
            for start in range(0, len(new), BATCH):
                batch = new[start : start + BATCH]
                self._client.log_batch(self.run_id, metrics=batch)
                self._sent |= {metric.key: metric.step for metric in batch}
            self._offset = offset
        except FAILURES as error:
            self._retry_at = time.monotonic() + RETRY_S
            say(f"MLflow at {shown(self.uri)} fails ({_short(error)}); the metrics stay in {self._metrics}")

    def close(self, status: str, say: Say) -> None:
        """Send the rest, the artifacts that the body named, and the stage's own records."""
        self._retry_at = 0.0
        self.sync(say)
        listed = read_jsonl(self._directory / "artifacts.jsonl")
        files = {(item["path"], item["folder"]) for item in listed}
        files |= {(str(self._directory / name), None) for name in ("spec.json", "manifest.json")}
        for path, folder in sorted(files, key=str):
            if Path(path).is_file():
                _log_artifact(self._client, self.uri, self.run_id, Path(path), folder, say)
        try:
            self._client.set_terminated(self.run_id, status)
        except FAILURES as error:
            say(f"MLflow at {shown(self.uri)}: the run stays open there: {_short(error)}")

    def _rows(self) -> tuple[list[dict[str, Any]], int]:
        """Whole rows after those that were sent, and where they end."""
        with self._metrics.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        end = self._offset + len(whole) + 1 if whole else self._offset
        return [json.loads(line) for line in whole.splitlines()], end


def _probe(uri: str) -> None:
    """Find out in seconds, before MLflow's own retries, that no server listens."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.hostname is None:
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), timeout=CONNECT_S).close()
    except OSError as error:
        raise unreachable(uri, error) from None


def unreachable(uri: str, error: Exception) -> UserError:
    return UserError(
        f"MLflow at {shown(uri)} cannot be used: {_short(error)}\n"
        "start that server, or pass another one with track.uri (unset = sqlite in the runs directory)"
    )


def shown(uri: str) -> str:
    """The URI without a password."""
    parts = urlsplit(uri)
    return uri.replace(parts.netloc, parts.netloc.rpartition("@")[2]) if parts.password else uri


def _experiment(client: MlflowClient, uri: str, name: str, artifacts: Path) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    # A server has its own place for artifacts; beside a database file we choose it.
    location = artifacts.resolve().as_uri() if uri.startswith("sqlite:") else None
    return str(client.create_experiment(name, artifact_location=location))


def _log_artifact(
    client: MlflowClient, uri: str, run_id: str, path: Path, folder: str | None, say: Say
) -> None:
    try:
        client.log_artifact(run_id, str(path), folder)
    except FAILURES as error:
        say(f"MLflow at {shown(uri)} did not take {path.name}: {_short(error)}")


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
