"""A run of three real (toy) stages: killed at every place, run again, nothing lost and nothing twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.plan import plan
from tasks import processes
from tasks.stage import Stage, read_metrics
from tests.flows.toy_flow import toy_flow, toy_specs

pytestmark = pytest.mark.usefixtures("prefect_server")
ROOT = Path(__file__).parents[2]


def start(runs_dir: Path, settings: dict[str, dict[str, Any]]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.flows.toy_flow", str(runs_dir), json.dumps(settings)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(condition: Callable[[], bool], deadline_s: float = 60) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def stages(runs_dir: Path, settings: dict[str, dict[str, Any]]) -> dict[str, Stage]:
    return {
        name: Stage(runs_dir / "stages" / f"{name}-{spec.fingerprint}", spec)
        for name, spec in toy_specs(settings).items()
    }


def traced(stage: Stage) -> list[int]:
    path = stage.dir / "trace.txt"
    return [int(line) for line in path.read_text().split()] if path.is_file() else []


def summary(runs_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs_dir / "toy/summary.json").read_text())
    return found


def outcomes(runs_dir: Path) -> list[str]:
    return [stage["outcome"] for stage in summary(runs_dir)["stages"]]


def mlflow_steps(runs_dir: Path, run_id: str) -> list[int]:
    client = MlflowClient(f"sqlite:///{runs_dir / 'mlflow.db'}")
    return [metric.step for metric in client.get_metric_history(run_id, "total")]


def child_pid(stage: Stage) -> int:
    token = (stage.dir / "token").read_text()
    return processes.holders(token)[0]


def check_all_done(runs_dir: Path, settings: dict[str, dict[str, Any]], repeated: int) -> None:
    for name, stage in stages(runs_dir, settings).items():
        manifest = stage.manifest()
        assert manifest is not None
        steps = settings[name].get("steps", 10)
        assert manifest.results["total"] == sum(range(1, steps + 1))
        assert sorted(set(traced(stage))) == list(range(1, steps + 1))
        assert len(traced(stage)) <= steps + repeated
        assert [row["step"] for row in read_metrics(stage.dir / "metrics.jsonl")] == list(
            range(1, steps + 1)
        )
        assert manifest.mlflow_run_id is not None
        assert sorted(mlflow_steps(runs_dir, manifest.mlflow_run_id)) == list(range(1, steps + 1))


def test_a_run_reuses_finished_stages_and_a_change_makes_later_ones_stale(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {}}
    assert toy_flow(str(tmp_path), "toy", settings, return_state=True).is_completed()
    check_all_done(tmp_path, settings, repeated=0)
    assert outcomes(tmp_path) == ["Completed"] * 3
    assert (tmp_path / "toy/config.yaml").is_file()
    first = summary(tmp_path)
    assert first["status"] == "completed"
    assert [stage["name"] for stage in first["stages"]] == ["a", "b", "c"]
    assert {stage["engine"] for stage in first["stages"]} == {"toy"}

    assert toy_flow(str(tmp_path), "toy", settings, return_state=True).is_completed()
    assert outcomes(tmp_path) == ["Reused"] * 3

    changed = {"a": {}, "b": {"offset": 1}, "c": {}}
    planned = plan(tmp_path, "toy", toy_specs(changed))
    assert [item.action for item in planned] == ["reused", "run", "run"]
    assert planned[0].changed == []
    assert planned[1].changed == ["settings.toy.offset: 0 -> 1"]
    assert [key.split(":")[0] for key in planned[2].changed] == ["inputs.b"]
    assert toy_flow(str(tmp_path), "toy", changed, return_state=True).is_completed()
    assert outcomes(tmp_path) == ["Reused", "Completed", "Completed"]
    assert len(list((tmp_path / "stages").iterdir())) == 5  # the old ones stay

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    parent = client.get_run(summary(tmp_path)["mlflow_run_id"])
    assert parent.info.status == "FINISHED"
    assert "a: reused" in parent.data.tags["mlflow.note.content"]
    for stage in summary(tmp_path)["stages"]:
        run = client.get_run(stage["mlflow_run_id"])
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.status == "FINISHED"
        assert run.data.params["toy.steps"] == "10"


def test_kill_9_of_the_child_within_a_step(tmp_path: Path) -> None:
    settings = {"a": {}, "b": {"steps": 12, "step_s": 0.1, "checkpoint_every": 3}, "c": {}}
    flow = start(tmp_path, settings)
    b = stages(tmp_path, settings)["b"]
    wait_for(lambda: len(traced(b)) >= 5)
    os.kill(child_pid(b), signal.SIGKILL)
    assert flow.wait(60) == 1
    failed = summary(tmp_path)
    assert failed["status"] == "failed"
    assert [stage["status"] for stage in failed["stages"]] == ["completed", "running", "pending"]
    assert [item.action for item in plan(tmp_path, "toy", toy_specs(settings))] == [
        "reused",
        f"resumed at step {b.checkpoint_step()}",
        "run",
    ]
    assert start(tmp_path, settings).wait(60) == 0
    assert outcomes(tmp_path) == ["Reused", "Resumed", "Completed"]
    check_all_done(tmp_path, settings, repeated=3)


def test_kill_9_of_the_flow_within_a_step_ends_the_child_too(tmp_path: Path) -> None:
    settings = {"a": {"steps": 12, "step_s": 0.1, "checkpoint_every": 3}}
    flow = start(tmp_path, settings)
    a = stages(tmp_path, settings)["a"]
    wait_for(lambda: len(traced(a)) >= 5)
    child = child_pid(a)
    flow.kill()
    flow.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists())
    assert start(tmp_path, settings).wait(60) == 0
    check_all_done(tmp_path, settings, repeated=3)


def test_kill_9_of_the_flow_between_stages(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    flow = start(tmp_path, settings)
    a = stages(tmp_path, settings)["a"]
    wait_for(lambda: (a.dir / "manifest.json").is_file())
    flow.kill()
    flow.wait()
    assert start(tmp_path, settings).wait(60) == 0
    assert outcomes(tmp_path)[0] == "Reused"
    check_all_done(tmp_path, settings, repeated=2)


def test_sigterm_stops_flow_and_child_and_says_so(tmp_path: Path) -> None:
    settings = {"a": {"steps": 1000, "step_s": 0.1, "checkpoint_every": 1000}}
    flow = start(tmp_path, settings)
    a = stages(tmp_path, settings)["a"]
    wait_for(lambda: len(traced(a)) >= 2)
    token = (a.dir / "token").read_text()
    flow.terminate()
    flow.wait(30)
    assert processes.holders(token) == []
    assert a.checkpoint_step() == len(traced(a))
    assert summary(tmp_path)["status"] == "stopped"
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert client.get_run(summary(tmp_path)["mlflow_run_id"]).info.status == "KILLED"


def test_a_fault_of_the_machine_is_tried_once_more(tmp_path: Path) -> None:
    settings = {"a": {"fail": "machine", "fails": 1}, "b": {"fail": "machine", "fails": 2}}
    state = toy_flow(str(tmp_path), "toy", settings, return_state=True)
    assert state.is_failed()
    assert state.message is not None
    assert state.message.startswith("stage b: the toy engine is gone")
    tries = [
        len((stage.dir / "tries.txt").read_text().splitlines())
        for stage in stages(tmp_path, settings).values()
    ]
    assert tries == [2, 2]


def test_a_mistake_of_the_user_is_not_tried_again(tmp_path: Path) -> None:
    settings = {"a": {"fail": "user"}}
    state = toy_flow(str(tmp_path), "toy", settings, return_state=True)
    assert state.is_failed()
    assert state.message is not None
    assert state.message.startswith("stage a: the toy does not like row 3 of toys.jsonl (log: ")
    assert len((stages(tmp_path, settings)["a"].dir / "tries.txt").read_text().splitlines()) == 1
