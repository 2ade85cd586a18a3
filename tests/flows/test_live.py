"""The lock of a flow run, and what is done with runs that have none left, on a real Prefect server."""

import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.states import Cancelling, Running

from flows import live

ROOT = Path(__file__).parents[2]
HOLD = "import sys, uuid, pathlib; from flows import live; live.hold(pathlib.Path(sys.argv[1]), uuid.UUID(sys.argv[2])); print('held', flush=True); sys.stdin.read()"  # noqa: E501


@flow(name="live-test")
def lived() -> None:
    """Never run: only its runs' states matter."""


@pytest.fixture
def client(prefect_server: str) -> SyncPrefectClient:
    return get_client(sync_client=True)


def new_run(client: SyncPrefectClient) -> UUID:
    return client.create_flow_run(lived, state=Running()).id


def holder(runs_dir: Path, run: UUID) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(runs_dir), str(run)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_held_by_one_process_and_freed_by_its_death(tmp_path: Path) -> None:
    run = uuid4()
    other = holder(tmp_path, run)
    assert live.is_live(tmp_path, run)
    assert not live.hold(tmp_path, run)
    other.kill()
    other.communicate()
    assert not live.is_live(tmp_path, run)
    assert live.hold(tmp_path, run)
    assert live.is_live(tmp_path, run)


def test_reconcile_settles_dead_runs_and_leaves_living_ones(
    tmp_path: Path, client: SyncPrefectClient
) -> None:
    dead, cancelling, living = new_run(client), new_run(client), new_run(client)
    deployment = client.create_deployment(client.create_flow(lived), "test")
    served = client.create_flow_run_from_deployment(deployment, state=Running()).id
    client.set_flow_run_state(cancelling, Cancelling(), force=True)
    process = holder(tmp_path, living)
    settled = live.reconcile(client, tmp_path, ["live-test"])
    process.kill()
    process.communicate()
    names = {run: client.read_flow_run(run) for run in (dead, cancelling, living, served)}
    assert sorted(settled) == sorted(names[run].name for run in (dead, cancelling, served))
    states = {run: names[run].state for run in names}
    assert [str(states[run].name) for run in (dead, cancelling, living, served)] == [
        "Cancelled",
        "Cancelled",
        "Running",
        "Resuming",
    ]
