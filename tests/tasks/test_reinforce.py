"""An RL stage for real: Ray, vLLM, sandbox and learner in a child that is killed in the middle of a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from flows.config import load
from tasks.spec import StageStatus
from tasks.stage import Stage, read_metrics
from tasks.stages import STAGES, make_spec
from tests.tasks.taught import ANSWER, QUESTION, teach

STEPS, INTERVAL = 12, 3
BUDGET = {"response_tokens": 120, "turns": 3, "prompt_tokens": 256}
OVERRIDES = {
    "rl": {
        "all": {
            "prompts": 2,
            "roc": {"rollouts": 16, "kept": 8},
            "rollout": BUDGET,
            "optimizer": {"lr": 4e-4, "warmup_steps": 0},
            "checkpoint_every": INTERVAL,
            "steps": STEPS,
        }
    },
    "held_out": {"samples": 8, "rollout": BUDGET},
    "engine": {"kv_memory_mb": 64},
}


@pytest.fixture(scope="module")
def rl1(tmp_path_factory):
    """Stage rl1 on a model that guesses among four answers."""
    runs, config, fingerprints = tmp_path_factory.mktemp("runs"), load("demo", OVERRIDES), {}
    for name in ("curate", "sft"):
        spec = make_spec(STAGES[name], config, config.seed, fingerprints)
        stage = Stage.prepare(runs, spec)
        fingerprints[name] = spec.fingerprint
        if name == "sft":
            teach(stage.outputs / "model", ("7", ANSWER, "13", "49"))
        else:
            rows = [{"id": f"q{i}", "problem": QUESTION, "answer": ANSWER} for i in range(4)]
            for file in ("pool", "held_out"):
                (stage.outputs / f"{file}.jsonl").write_text(
                    "".join(json.dumps(row) + "\n" for row in rows)
                )
        stage.finish(StageStatus(status="completed"))
    return Stage.prepare(runs, make_spec(STAGES["rl1"], config, config.seed, fingerprints))


def start(stage: Stage) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tasks", str(stage.dir)], start_new_session=True)


def steps(stage: Stage) -> list[int]:
    rows = read_metrics(stage.dir / "metrics.jsonl")
    return [row["step"] for row in rows if "reward" in row["values"]]


def test_killed_in_a_step_it_resumes_and_the_reward_rises(rl1):
    child = start(rl1)
    end = time.monotonic() + 240
    while len(steps(rl1)) < INTERVAL + 2:
        assert child.poll() is None and time.monotonic() < end, rl1.log_file.read_text()[-3000:]
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    reached = max(steps(rl1))
    kept = rl1.checkpoint_step()
    assert (
        kept is not None and 0 <= reached - kept <= INTERVAL
    )  # no more than an interval is repeated

    assert start(rl1).wait(timeout=240) == 0, rl1.log_file.read_text()[-3000:]
    manifest = rl1.manifest()
    assert manifest is not None and manifest.steps == STEPS
    assert steps(rl1) == list(range(1, STEPS + 1))  # each step's metrics once
    assert f"resumed at step {kept}" in rl1.log_file.read_text()

    results, ran_on = manifest.results, manifest.ran_on
    rows = [
        row["values"]
        for row in read_metrics(rl1.dir / "metrics.jsonl")
        if "reward" in row["values"]
    ]
    first = rows[0]["reward"]
    assert first < 0.5 < results["reward_last5"]
    assert results["accuracy"] > 0.5
    assert ran_on["engine"] == "vllm.v1.engine.async_llm.AsyncLLM"
    assert ran_on["isolation"] and ran_on["sandbox_calls"] > 0
    assert ran_on["weight_version"] == rows[-1]["weight_version"] > STEPS // 2
    for row in rows:
        assert 0 < row["tool/status/ok"] <= row["tool/calls"]
        assert 0 < row["tool/cpu_seconds_sum"] < row["tool/seconds_sum"]
        assert 0 < row["tool/wait_share"] < 1
    for name in ("model/model.safetensors", "learner/STABLE"):
        assert name in manifest.outputs
