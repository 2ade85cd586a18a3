"""MLflow: one run a pipeline run, one child run a stage fingerprint. The only module that imports MLflow.

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
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from sandbox.errors import UserError
from tasks.spec import StageSpec, TrackTarget, flatten

logging.getLogger("mlflow").setLevel(logging.WARNING)

KEY, RUN, PARENT, NOTE = "rstar2.key", "rstar2.run", "mlflow.parentRunId", "mlflow.note.content"
RETRY_S = 60.0
CONNECT_S = 5.0
BATCH = 1000  # MLflow's limit of metrics a call
FAILURES = (MlflowException, OSError)

Say = Callable[[str], None]


class Pipeline:
    """The MLflow run of a pipeline run, held by the process that runs the flow."""

    def __init__(self, uri: str, experiment: str, run_name: str, artifacts: Path) -> None:
        self.uri = uri
        _probe(uri)
        try:
            self._client = MlflowClient(uri)
            self._experiment = _experiment(self._client, uri, experiment, artifacts)
            found = _find(self._client, self._experiment, RUN, run_name)
            if found is None:
                found = self._client.create_run(
                    self._experiment, run_name=run_name, tags={RUN: run_name}
                ).info.run_id
        except FAILURES as error:
            raise unreachable(uri, error) from None
        self.run_id = found
        self._client.update_run(self.run_id, status="RUNNING")

    def artifact(self, path: Path) -> None:
        self._client.log_artifact(self.run_id, str(path))

    def close(self, status: str, note: str) -> None:
        """`status` is FINISHED, FAILED or KILLED; `note` is shown with the run."""
        self._client.set_tag(self.run_id, NOTE, note)
        self._client.set_terminated(self.run_id, status)


class StageTrack:
    """The MLflow run of a stage, held by the stage child."""

    def __init__(self, spec: StageSpec, target: TrackTarget, metrics: Path, artifacts: Path) -> None:
        self.uri = target.uri
        self._metrics = metrics
        self._offset = 0  # bytes of metrics.jsonl that MLflow has
        self._retry_at = 0.0
        key = f"{spec.stage}-{spec.fingerprint}"
        _probe(target.uri)
        try:
            self._client = MlflowClient(target.uri)
            experiment = _experiment(self._client, target.uri, target.experiment, artifacts)
            found = _find(self._client, experiment, KEY, key)
            self.run_id = found or self._create(experiment, spec, key)
            self._client.update_run(self.run_id, status="RUNNING")
            if target.parent_run_id is not None:
                self._client.set_tag(self.run_id, PARENT, target.parent_run_id)
            self._sent = self._last_steps() if found else {}
        except FAILURES as error:
            raise unreachable(target.uri, error) from None

    def sync(self, say: Say) -> None:
        """Send what metrics.jsonl has and MLflow has not. A failure is said once and tried again later."""
        if time.monotonic() < self._retry_at:
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
                for metric in batch:
                    self._sent[metric.key] = metric.step
            self._offset = offset
        except FAILURES as error:
            self._retry_at = time.monotonic() + RETRY_S
            say(f"MLflow at {shown(self.uri)} fails ({_short(error)}); the metrics stay in {self._metrics.name}")

    def artifact(self, path: Path, folder: str | None, say: Say) -> None:
        try:
            self._client.log_artifact(self.run_id, str(path), folder)
        except FAILURES as error:
            say(f"MLflow at {shown(self.uri)} did not take {path.name}: {_short(error)}")

    def close(self, status: str, say: Say) -> None:
        self._retry_at = 0.0
        self.sync(say)
        try:
            self._client.set_terminated(self.run_id, status)
        except FAILURES as error:
            say(f"MLflow at {shown(self.uri)}: the run stays open there: {_short(error)}")

    def _create(self, experiment: str, spec: StageSpec, key: str) -> str:
        run_id = str(
            self._client.create_run(experiment, run_name=spec.stage, tags={KEY: key}).info.run_id
        )
        flat = flatten(spec.sections) | {"seed": spec.seed, "version": spec.version}
        params = [Param(name, str(value)[:500]) for name, value in flat.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(run_id, params=params[start : start + 100])
        self._client.log_batch(
            run_id, tags=[RunTag(f"rstar2.input.{name}", value) for name, value in spec.inputs.items()]
        )
        return run_id

    def _rows(self) -> tuple[list[dict[str, Any]], int]:
        """Rows after what was sent, and where they end."""
        with self._metrics.open() as file:
            file.seek(self._offset)
            text = file.read()
            return [json.loads(line) for line in text.splitlines()], file.tell()

    def _last_steps(self) -> dict[str, int]:
        keys = self._client.get_run(self.run_id).data.metrics
        return {
            key: max(metric.step for metric in self._client.get_metric_history(self.run_id, key))
            for key in keys
        }


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


def _find(client: MlflowClient, experiment: str, tag: str, value: str) -> str | None:
    runs = client.search_runs([experiment], f"tags.`{tag}` = '{value}'", max_results=1)
    return str(runs[0].info.run_id) if runs else None


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
