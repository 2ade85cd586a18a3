"""A stage in a real child process: finished, killed, stopped, failed, waiting, damaged."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import processes
from tasks.spec import StageSpec, changed_keys
from tasks.stage import Stage, read_metrics
from tests.tasks import toy


def start(stage: Stage, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tasks", str(stage.dir)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def run(stage: Stage) -> int:
    child = start(stage)
    child.communicate(timeout=60)
    return child.returncode


def wait_for(condition: Callable[[], bool], deadline_s: float = 30) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def traced(stage: Stage) -> list[int]:
    path = stage.dir / "trace.txt"
    return [int(line) for line in path.read_text().split()] if path.is_file() else []


def metric_steps(stage: Stage) -> list[int]:
    return [
        row["step"] for row in read_metrics(stage.dir / "metrics.jsonl") if "total" in row["values"]
    ]


def test_a_finished_stage_has_a_manifest_of_its_outputs(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=4))
    assert stage.manifest() is None
    child = start(stage)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    manifest = stage.manifest()
    assert manifest is not None
    assert manifest.results == {"total": 10, "steps": 4}
    assert manifest.ran_on == {"engine": "toy"}
    assert manifest.steps == 4
    assert manifest.outputs == {"sum.json": (stage.outputs / "sum.json").stat().st_size}
    assert "| the sum is 10" in said.splitlines()
    assert json.loads(next(line for line in said.splitlines() if line.startswith("|{"))[1:])[
        "numbers"
    ] == {"sum": 1.0}


def test_a_finished_stage_is_not_computed_again_until_its_outputs_are_damaged(
    tmp_path: Path,
) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=3))
    assert run(stage) == 0
    assert run(stage) == 0
    assert traced(stage) == [1, 2, 3]
    (stage.outputs / "sum.json").write_text("{}")
    assert stage.manifest() is None
    assert stage.damage() == [
        f"sum.json has 2 bytes instead of {len(json.dumps({'total': 6, 'upstream': 0}))}"
    ]
    assert run(stage) == 0
    assert stage.manifest() is not None


def test_kill_9_repeats_at_most_one_checkpoint_interval_and_no_metric(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=12, step_s=0.05, checkpoint_every=3))
    child = start(stage)
    wait_for(lambda: len(traced(stage)) >= 5)
    child.kill()
    child.wait()
    assert stage.manifest() is None
    killed_at = len(traced(stage))
    assert stage.checkpoint_step() is not None
    assert run(stage) == 0
    assert len(traced(stage)) - 12 <= 3
    assert len(traced(stage)) >= killed_at
    assert metric_steps(stage) == list(range(1, 13))
    manifest = stage.manifest()
    assert manifest is not None
    assert manifest.results["total"] == sum(range(1, 13))


def test_a_metrics_line_cut_in_half_by_a_kill_is_written_again(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=4))
    (stage.dir / "metrics.jsonl").write_text(
        '{"step": 1, "time": 1.0, "values": {"total": 1.0}}\n{"step": 2, "ti'
    )
    assert run(stage) == 0
    assert metric_steps(stage) == [1, 2, 3, 4]


def test_sigterm_checkpoints_and_exits_with_143(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=1000, step_s=0.05, checkpoint_every=1000))
    child = start(stage)
    wait_for(lambda: len(traced(stage)) >= 2)
    child.terminate()
    assert child.wait(timeout=20) == 143
    assert stage.checkpoint_step() == len(traced(stage))
    status = stage.status()
    assert status is not None
    assert status.status == "stopped"
    assert stage.manifest() is None


def test_sigterm_breaks_off_a_body_that_does_not_listen(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=2, step_s=600))
    child = start(stage)
    wait_for(lambda: (stage.dir / "tries.txt").is_file())
    child.terminate()
    assert child.wait(timeout=20) == 143
    assert traced(stage) == []


@pytest.mark.parametrize(
    ("fail", "code", "message"),
    [
        ("user", 2, "the toy does not like row 3 of toys.jsonl"),
        ("machine", 75, "the toy engine is gone"),
        ("bug", 1, "ZeroDivisionError: a bug in the toy"),
    ],
)
def test_exit_codes_say_who_must_act(tmp_path: Path, fail: str, code: int, message: str) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=4, fail=fail))
    child = start(stage)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == code
    assert message in said
    status = stage.status()
    assert status is not None
    assert (status.status, status.error) == ("failed", message)
    assert stage.manifest() is None
    assert ("Traceback" in stage.log_file.read_text()) == (fail == "bug")


def test_a_second_child_waits_for_the_first_and_computes_nothing(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=6, step_s=0.3))
    first = start(stage)
    wait_for(lambda: len(traced(stage)) >= 1)
    second = start(stage)
    said, _ = second.communicate(timeout=60)
    assert first.wait(timeout=60) == 0
    assert second.returncode == 0
    assert f"| waiting: process {first.pid} works in {stage.dir}" in said
    assert traced(stage) == [1, 2, 3, 4, 5, 6]


def test_a_child_ends_what_a_killed_one_left_behind(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=1))
    (stage.dir / "token").write_text("an-older-try")
    older = os.environ | {processes.TOKEN: "an-older-try"}
    orphan = subprocess.Popen(["sleep", "600"], env=older, start_new_session=True)
    wait_for(lambda: orphan.pid in processes.holders("an-older-try"))
    child = start(stage, **{processes.TOKEN: "this-try"})
    assert child.wait(timeout=60) == 0
    assert orphan.wait(timeout=10) == -signal.SIGKILL


def test_a_child_whose_launcher_is_gone_leaves(tmp_path: Path) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=1))
    child = start(stage, **{processes.LAUNCHER: "1"})
    assert child.wait(timeout=60) == 143
    assert traced(stage) == []


def test_operational_settings_change_no_fingerprint_and_a_numeric_change_is_named() -> None:
    base = toy.spec(steps=4)
    assert toy.spec(steps=4, step_s=9.0).fingerprint == base.fingerprint
    changed = toy.spec(steps=5, inputs={"up": "abc"})
    assert changed.fingerprint != base.fingerprint
    assert changed_keys(base, changed) == [
        'inputs.up: absent -> "abc"',
        "settings.toy.steps: 4 -> 5",
    ]


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5), st.integers() | st.text() | st.booleans(), max_size=5
    )
)
def test_the_fingerprint_does_not_depend_on_the_order_of_keys(
    numbers: dict[str, int | str | bool],
) -> None:
    def spec(values: dict[str, int | str | bool]) -> StageSpec:
        return toy.spec().model_copy(update={"numeric": values})

    assert spec(numbers).fingerprint == spec(dict(reversed(numbers.items()))).fingerprint


def test_inputs_are_read_from_the_upstream_stage(tmp_path: Path) -> None:
    up = Stage.prepare(tmp_path, toy.spec("up", steps=3))
    down = Stage.prepare(tmp_path, toy.spec("down", steps=1, inputs={"up": up.spec.fingerprint}))
    assert run(up) == 0
    assert run(down) == 0
    assert json.loads((down.outputs / "sum.json").read_text())["upstream"] == 6
