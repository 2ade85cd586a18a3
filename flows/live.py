"""Which flow runs have a living process, by a kernel lock for each, and what to do with those that have not.

A machine that dies leaves its flow runs "Running" in Prefect for ever. Their locks are free, though, so
`reconcile()` at the start of the service hands them out again, and the stages go on from their checkpoints.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled, Scheduled

ALIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]

_held: dict[UUID, IO[str]] = {}


def hold(runs_dir: Path, flow_run_id: UUID) -> bool:
    """Hold the lock of this flow run until the process ends; False if another process holds it."""
    file = open(_lock_file(runs_dir, flow_run_id), "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return False
    _held[flow_run_id] = file
    return True


def is_live(runs_dir: Path, flow_run_id: UUID) -> bool:
    if flow_run_id in _held:
        return True
    with open(_lock_file(runs_dir, flow_run_id), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def reconcile(client: SyncPrefectClient, runs_dir: Path, flow_names: list[str]) -> list[str]:
    """Schedule again what a dead process left running, settle what it left cancelling; names of both."""
    runs = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=flow_names)),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=ALIVE))),
    )
    dead = [run for run in runs if not is_live(runs_dir, run.id)]
    for run in dead:
        cancelling = run.state is not None and run.state.type == StateType.CANCELLING
        # A run without a deployment was started by hand: nobody would pick it up.
        state: State = Scheduled(name="Resuming", message="its process was gone")
        if cancelling or run.deployment_id is None:
            state = Cancelled(message="its process is gone")
        client.set_flow_run_state(run.id, state, force=True)
    return [run.name for run in dead]


def _lock_file(runs_dir: Path, flow_run_id: UUID) -> Path:
    directory = runs_dir / ".live"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / str(flow_run_id)
