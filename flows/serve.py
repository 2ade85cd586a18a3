"""`rstar2 serve`: Prefect server and UI, MLflow UI, and the deployments, as one thing that starts and stops.

This process only supervises: each part is a child in its own session that dies with it. Stopping goes from
the inside out, so that a flow run in flight ends its stage before its server goes. Invariant: when it has
stopped, nothing that it started is alive.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from flows import local_server
from flows.config import PipelineConfig
from sandbox.errors import InfrastructureError, UserError
from tasks import processes

HOST = "127.0.0.1"
DEPLOYMENTS = "deployments"
SERVED = "being served"  # Prefect's own words in the log
START_S = 120.0
RUNS_STOP_S = 20.0  # a stage has 10 s


class _Stopped(Exception):
    """SIGINT or SIGTERM came."""


def serve(config: PipelineConfig, port: int, mlflow_port: int) -> int:
    """Run everything until SIGINT or SIGTERM, or until a part ends by itself."""
    own_mlflow = config.track.uri is None
    for number, what, option in ((port, "Prefect", "--port"), (mlflow_port, "MLflow", "--mlflow-port")):
        if _listens(number) and (own_mlflow or what == "Prefect"):
            raise UserError(f"port {number} for {what} is taken: stop what listens there, or pass {option}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    logs = config.runs_path / ".prefect"
    logs.mkdir(parents=True, exist_ok=True)
    parts = _Parts(logs, _environment(logs, port, config))
    try:
        server = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
        parts.start("Prefect server", server)
        if own_mlflow:
            parts.start("MLflow UI", _mlflow(config, mlflow_port))
        parts.wait_for("Prefect server", lambda: _listens(port))
        if own_mlflow:
            parts.wait_for("MLflow UI", lambda: _listens(mlflow_port))
        parts.start(DEPLOYMENTS, [sys.executable, "-m", "flows.deployments", str(config.runs_path)])
        parts.wait_for(DEPLOYMENTS, lambda: SERVED in parts.log(DEPLOYMENTS).read_text())
        print(f"Prefect      http://{HOST}:{port}", flush=True)
        print(f"MLflow       {config.track.uri or f'http://{HOST}:{mlflow_port}'}", flush=True)
        print("run it       prefect deployment run rstar2/full-recipe", flush=True)
        if port != 4200:
            print(f"             (with PREFECT_API_URL={local_server.api_url(port)})", flush=True)
        parts.watch()
    except _Stopped:
        print("stopping", flush=True)
    finally:
        parts.stop()
    return 0


class _Parts:
    """The children, in the order in which they were started."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self._logs = logs
        self._environment = environment
        # Flow runs inherit the token of the part that serves the deployments.
        self._runs_token = uuid.uuid4().hex
        self._parts: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str]) -> None:
        own = {processes.TOKEN: self._runs_token} if name == DEPLOYMENTS else {}
        with self.log(name).open("w") as log:
            self._parts[name] = subprocess.Popen(
                processes.tied(command),
                env=self._environment | own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            self._check()
            if time.monotonic() > deadline:
                raise InfrastructureError(f"{name} is not ready after {START_S:.0f} s; see {self.log(name)}")
            time.sleep(0.2)

    def watch(self) -> None:
        while True:
            self._check()
            time.sleep(0.5)

    def stop(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        runs = self._parts.pop(DEPLOYMENTS, None)
        if runs is not None:
            # Prefect's runner would kill its flow runs outright; they are to settle, while the servers are up.
            processes.end_all(self._runs_token, besides=runs.pid, wait_s=RUNS_STOP_S)
        for token in (self._runs_token, self._environment[processes.TOKEN]):
            processes.end_all(token)
        for part in (runs, *self._parts.values()):
            if part is not None:
                part.wait()

    def _check(self) -> None:
        for name, part in self._parts.items():
            if part.poll() is not None:
                raise InfrastructureError(f"{name} ended with code {part.returncode}; see {self.log(name)}")

    def log(self, name: str) -> Path:
        return self._logs / f"{name.lower().replace(' ', '-')}.log"


def _environment(home: Path, port: int, config: PipelineConfig) -> dict[str, str]:
    return processes.child_environment() | {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": local_server.api_url(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        "PREFECT_RUNNER_SERVER_ENABLE": "false",
        "RSTAR2_CRON": config.evaluate.cron,
        # Without its job consumers the MLflow server starts in 5 s instead of 21, in a third of the memory.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _mlflow(config: PipelineConfig, port: int) -> list[str]:
    artifacts = (config.runs_path / "mlartifacts").as_uri()
    store = ["--backend-store-uri", config.tracking_uri, "--default-artifact-root", artifacts]
    return [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1", *store]


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped
