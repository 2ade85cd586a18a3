"""Stage `evaluate` as a child process: real engines, sandbox and verification on a model with known answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import load
from rl.trajectory import Problem, Rollout, StopReason, ToolCall
from tasks.benchmarks.problem_file import ProblemFile
from tasks.evaluate import Answered, Asking
from tasks.scores import Attempt
from tasks.spec import StageSpec
from tasks.stage import Stage, read_jsonl
from tasks.stages import STAGES, make_spec
from tasks.transcript import Transcript, transcribe
from tests.tasks.taught import ANSWER, QUESTION, teach

LONG = "Add all of these numbers: " + ", ".join(str(n) for n in range(300))


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """An evaluation of the taught model on held-out problems and on a file."""
    root = tmp_path_factory.mktemp("evaluate")
    file = write(
        root / "school.jsonl",
        {"question": QUESTION, "answer": int(ANSWER)},
        {"question": QUESTION, "answer": 41},
        {"question": LONG, "answer": 44850},
    )
    runs = root / "runs"
    curate = Stage.prepare(runs, bare("curate"))
    write(
        curate.outputs / "held_out.jsonl",
        {"id": "six-seven", "problem": QUESTION, "answer": ANSWER},
    )
    rl3 = Stage.prepare(runs, bare("rl3"))
    teach(rl3.outputs / "model")
    evaluate = {
        "benchmarks": ["held_out", str(file)],
        "samples": 2,
        "sampling": {"temperature": 0.0},
        "rollout": {
            "prompt_tokens": 256,
            "response_tokens": 256,
            "turns": 3,
            "tool_response_tokens": 64,
        },
    }
    config = load("demo", {"evaluate": evaluate, "runs_dir": str(runs), "cluster": {"cpus": 2}})
    inputs = {"curate": curate.spec.fingerprint, "rl3": rl3.spec.fingerprint}
    stage = Stage.prepare(runs, make_spec(STAGES["evaluate"], config, 0, inputs))
    run(stage)
    return stage


def bare(stage: str) -> StageSpec:
    return StageSpec(stage=stage, body="", version=1, seed=0, sections={}, numeric={})


def run(stage: Stage) -> str:
    child = subprocess.run(
        [sys.executable, "-m", "tasks", str(stage.dir)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert child.returncode == 0, child.stdout + stage.log_file.read_text()[-3000:]
    return child.stdout


@pytest.mark.slow
def test_results_are_those_that_the_model_was_taught(finished: Stage) -> None:
    manifest = finished.manifest()
    assert manifest is not None
    held_out, school = (
        manifest.results["benchmarks"]["held_out"],
        manifest.results["benchmarks"]["school"],
    )
    assert (held_out["accuracy"], held_out["pass_at_k"], held_out["problems"]) == (1.0, 1.0, 1)
    assert held_out["accuracy_stderr"] is None  # one problem has no spread
    assert (held_out["tool_calls"], held_out["tool_error_rate"]) == (1.0, 0.0)
    # one right, one with another label, one whose prompt is too long
    assert school["accuracy"] == pytest.approx(1 / 3)
    assert (school["problems"], school["prompt_too_long"]) == (3, 1)
    assert school["stop_reasons"]["answered"] == 4
    assert manifest.results["accuracy"] == 1.0  # the summary's figures are the first benchmark's
    assert manifest.ran_on["engine"].endswith("AsyncLLM")
    assert manifest.ran_on["isolation"]
    assert manifest.ran_on["sandbox_calls"] == 6
    assert (
        json.loads((finished.outputs / "results.json").read_text())["benchmarks"]
        == manifest.results["benchmarks"]
    )
    rows = [row["values"] for row in read_jsonl(finished.dir / "metrics.jsonl")]
    assert [row["school/accuracy"] for row in rows if "school/accuracy" in row] == [
        pytest.approx(1 / 3)
    ]


@pytest.mark.slow
def test_samples_show_what_was_written_called_and_returned(finished: Stage) -> None:
    lines = (finished.outputs / "samples.jsonl").read_text().splitlines()
    samples = [Transcript.model_validate_json(line) for line in lines]
    assert [(sample.benchmark, sample.reward) for sample in samples] == [
        ("held_out", 1.0), ("held_out", 1.0), ("school", 1.0), ("school", 1.0), ("school", 0.0), ("school", 0.0),
    ]  # fmt: skip
    first, second = samples[0].turns
    assert "print(6*7)" in first.text
    assert (first.calls[0].status, first.calls[0].failed) == ("ok", False)
    assert "stdout: 42" in first.calls[0].result
    assert "\\boxed{42}" in second.text
    assert second.calls == []


@pytest.mark.slow
def test_the_model_that_was_evaluated_is_the_exported_one(finished: Stage) -> None:
    manifest = finished.manifest()
    assert manifest is not None
    assert {"model/model.safetensors", "model/generation_config.json"} <= manifest.outputs.keys()
    assert manifest.results["model"]["architecture"] == "Qwen3ForCausalLM"
    assert f"starting 1 engine(s) on {finished.outputs / 'model'}" in finished.log_file.read_text()


@pytest.mark.slow
def test_a_killed_stage_asks_nothing_twice(finished: Stage) -> None:
    before = finished.manifest()
    assert before is not None
    (finished.dir / "manifest.json").unlink()
    said = run(finished)  # everything is answered, so no engine is started
    assert "starting" not in said
    after = finished.manifest()
    assert after is not None
    assert after.results == before.results
    assert after.ran_on == before.ran_on


def asking(tmp_path: Path, answers: tuple[int, ...]) -> Asking:
    rows = (
        {"id": f"p{i}", "problem": f"problem {i}", "answer": answer}
        for i, answer in enumerate(answers)
    )
    return Asking.open(ProblemFile(write(tmp_path / "set.jsonl", *rows)), tmp_path)


def test_a_line_cut_in_half_by_a_kill_is_asked_again(tmp_path: Path) -> None:
    half = asking(tmp_path, (1, 2, 3))
    half.add(
        [
            Answered(id=f"p{i}", attempts=[Attempt(1.0, StopReason.ANSWERED, 5, 1, 0)])
            for i in range(2)
        ]
    )
    half.file.write_text(half.file.read_text()[:-20])
    assert [problem.id for problem in half.left()] == ["p1", "p2"]
    half.add([Answered(id="p1", attempts=[])])
    assert [problem.id for problem in half.left()] == ["p2"]


def test_answers_to_another_content_of_the_file_are_not_taken(tmp_path: Path) -> None:
    asking(tmp_path, (1, 2)).add([Answered(id="p0", attempts=[])])
    assert len(asking(tmp_path, (1, 2)).left()) == 1
    assert len(asking(tmp_path, (1, 3)).left()) == 2


def test_calls_are_dealt_out_to_the_turns_that_made_them() -> None:
    one = '<tool_call>{"name": "run", "arguments": {"code": "1", "input": ""}}</tool_call>'
    rollout = Rollout(
        "p",
        [1],
        turn_texts=[one + one, "<tool_call>oops", one],
        calls=[
            ToolCall("ok", False, result="1"),
            ToolCall("error", True),
            ToolCall("parse_error", True),
        ],
        stop=StopReason.TURN_LIMIT,  # the last turn's call was not made
    )
    transcript = transcribe("set", Problem("p", "?", "1"), rollout, "run")
    assert [[call.status for call in turn.calls] for turn in transcript.turns] == [
        ["ok", "error"],
        ["parse_error"],
        [],
    ]
    assert transcript.failed_calls == 2
