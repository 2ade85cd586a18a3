"""The console script as a user types it, in real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.local_server import free_port

ROOT = Path(__file__).parents[2]


def rstar2(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=ROOT,
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_plan_prints_the_resolved_configuration_and_each_stage(tmp_path: Path) -> None:
    done = rstar2("plan", "--set", f"runs_dir={tmp_path}", "--set", "rl.rl1.steps=5")
    assert done.returncode == 0, done.stderr
    assert "# profile demo" in done.stdout
    assert "steps: 5" in done.stdout
    stages = [line.split() for line in done.stdout.splitlines() if line.endswith("  run")]
    assert [line[0] for line in stages] == [
        "curate",
        "sft",
        "rl1",
        "rl2",
        "hard_pool",
        "rl3",
        "evaluate",
        "report",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "--set", "rl.rl1.stepz=5"],
            "error: rl.rl1.stepz (the overrides): there is no such setting",
        ),
        (
            ["run", "--profile", "huge"],
            "error: profile 'huge' is not in pipeline.yaml; valid: demo, node, paper",
        ),
        (["run", "--profile", "paper"], "error: profile 'paper' cannot run here:"),
        (["run", "--set", "model.base=/not/there"], "model.base: /not/there is not there"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    arguments: list[str], message: str
) -> None:
    done = rstar2(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_prefect_server_is_named_with_the_remedy(tmp_path: Path) -> None:
    done = rstar2("run", "--set", f"runs_dir={tmp_path}", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert done.returncode == 2
    assert (
        "the Prefect server at http://127.0.0.1:9/api (PREFECT_API_URL) does not answer"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_run_without_a_server_tells_of_an_unreachable_mlflow(tmp_path: Path) -> None:
    done = rstar2("run", "--set", f"runs_dir={tmp_path}", "--set", "track.uri=http://127.0.0.1:9")
    assert done.returncode == 1
    assert "MLflow at http://127.0.0.1:9 cannot be used" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not (tmp_path / "stages").exists()


def test_eval_without_any_model_has_nothing_to_evaluate(
    tmp_path: Path, prefect_server: str
) -> None:
    done = rstar2("eval", "--set", f"runs_dir={tmp_path}", PREFECT_API_URL=prefect_server)
    assert done.returncode == 0, done.stderr
    assert "Nothing to evaluate" in done.stdout
    missing = rstar2(
        "eval",
        "--model",
        str(tmp_path),
        "--set",
        f"runs_dir={tmp_path}",
        PREFECT_API_URL=prefect_server,
    )
    assert missing.returncode == 1
    assert "expected a directory with config.json" in missing.stderr


@pytest.mark.slow
def test_serve_runs_a_deployment_and_stops_all_that_it_started(tmp_path: Path) -> None:
    port, mlflow_port = free_port(), free_port()
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")
    }
    ports = ["--port", str(port), "--mlflow-port", str(mlflow_port)]
    command = [sys.executable, "-m", "flows.cli", "serve", "--set", f"runs_dir={tmp_path}", *ports]
    service = subprocess.Popen(command, cwd=ROOT, env=environment)
    environment["COLUMNS"] = "300"  # or names are cut
    environment["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"

    def prefect(*arguments: str) -> str:
        line = [sys.executable, "-m", "prefect", *arguments]
        done = subprocess.run(
            line,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    try:
        wait_for(lambda: "rstar2-eval/nightly" in prefect("deployment", "ls"), 120)
        run = ("deployment", "run", "rstar2/full-recipe")
        assert "Refused" in prefect(*run, "--param", "profile=paper", "--watch")
        assert "not one of" in prefect(*run, "--param", "profile=huge")
        here = ("--params", json.dumps({"overrides": {"runs_dir": str(tmp_path)}}))
        assert "Nothing to evaluate" in prefect(
            "deployment", "run", "rstar2-eval/nightly", *here, "--watch"
        )
        # A run in flight is stopped with the service and says so.
        prefect(*run, *here)
        wait_for(lambda: any(tmp_path.glob("stages/curate-*/status.json")), 60)
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0
    assert json.loads((tmp_path / "demo/summary.json").read_text())["status"] == "stopped"
    for number in (port, mlflow_port):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", number)) != 0
    mine = str(tmp_path).encode()
    assert [pid for pid in Path("/proc").glob("[0-9]*") if mine in command_line(pid)] == []


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(condition, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.2)
