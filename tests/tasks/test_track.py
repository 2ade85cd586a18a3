"""MLflow runs on a real sqlite store: found again, each (key, step) once, errors in seconds."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from sandbox.errors import UserError
from tasks.stage import Stage
from tasks.track import PipelineTrack, shown
from tests.tasks import toy


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineTrack:
    return PipelineTrack(uri(tmp_path), "test", "one", tmp_path / "mlartifacts")


def uri(directory: Path) -> str:
    return f"sqlite:///{directory / 'mlflow.db'}"


def write(stage: Stage, *rows: tuple[int, dict[str, float]]) -> None:
    with (stage.dir / "metrics.jsonl").open("a") as file:
        for step, values in rows:
            file.write(json.dumps({"step": step, "time": 1000.0 + step, "values": values}) + "\n")


def history(directory: Path, run_id: str, key: str) -> list[tuple[int, float]]:
    return sorted(
        (m.step, m.value) for m in MlflowClient(uri(directory)).get_metric_history(run_id, key)
    )


def test_a_stage_is_one_run_whoever_asks_for_it_and_logs_each_step_once(
    tmp_path: Path, pipeline: PipelineTrack
) -> None:
    stage = Stage.prepare(tmp_path, toy.spec(steps=4))
    first = pipeline.stage(stage.spec, stage.dir)
    write(stage, (1, {"a": 1.0}), (2, {"a": 2.0}))
    first.sync(print)
    write(stage, (3, {"a": 3.0, "b": 3.5}))
    first.sync(print)
    first.sync(print)

    other = PipelineTrack(uri(tmp_path), "test", "two", tmp_path / "mlartifacts")
    assert other.run_id != pipeline.run_id
    again = other.stage(stage.spec, stage.dir)
    assert again.run_id == first.run_id
    write(stage, (4, {"a": 4.0}))
    (stage.dir / "note.txt").write_text("an artifact")
    named = {"path": str(stage.dir / "note.txt"), "folder": "plots"}
    (stage.dir / "artifacts.jsonl").write_text(json.dumps(named) + "\n")
    again.close("FINISHED", print)

    assert history(tmp_path, first.run_id, "a") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert history(tmp_path, first.run_id, "b") == [(3, 3.5)]
    client = MlflowClient(uri(tmp_path))
    run = client.get_run(first.run_id)
    assert run.data.tags["mlflow.parentRunId"] == other.run_id
    assert run.data.params["toy.steps"] == "4"
    assert run.info.status == "FINISHED"
    assert [item.path for item in client.list_artifacts(first.run_id, "plots")] == [
        "plots/note.txt"
    ]
    assert "spec.json" in [item.path for item in client.list_artifacts(first.run_id)]


def test_a_half_written_row_waits_for_its_other_half(
    tmp_path: Path, pipeline: PipelineTrack
) -> None:
    stage = Stage.prepare(tmp_path, toy.spec())
    track = pipeline.stage(stage.spec, stage.dir)
    write(stage, (1, {"a": 1.0}))
    whole = json.dumps({"step": 2, "time": 1.0, "values": {"a": 2.0}}) + "\n"
    with (stage.dir / "metrics.jsonl").open("a") as file:
        file.write(whole[:20])
        file.flush()
        track.sync(print)
        assert history(tmp_path, track.run_id, "a") == [(1, 1.0)]
        file.write(whole[20:])
    track.sync(print)
    assert history(tmp_path, track.run_id, "a") == [(1, 1.0), (2, 2.0)]


def test_a_finished_stage_whose_launcher_was_killed_is_settled(
    tmp_path: Path, pipeline: PipelineTrack
) -> None:
    stage = Stage.prepare(tmp_path, toy.spec())
    track = pipeline.stage(stage.spec, stage.dir)
    write(stage, (1, {"a": 1.0}))
    pipeline.finished(stage.spec, stage.dir, print)
    assert history(tmp_path, track.run_id, "a") == [(1, 1.0)]
    assert MlflowClient(uri(tmp_path)).get_run(track.run_id).info.status == "FINISHED"


def test_a_store_that_fails_costs_a_line_and_no_metric(
    tmp_path: Path, pipeline: PipelineTrack
) -> None:
    stage = Stage.prepare(tmp_path, toy.spec())
    track = pipeline.stage(stage.spec, stage.dir)
    write(stage, (1, {"a": 1.0}))
    nowhere = MlflowClient("http://127.0.0.1:9")
    real, track._client = track._client, nowhere
    said: list[str] = []
    track.sync(said.append)
    track.sync(said.append)
    assert len(said) == 1
    assert "the metrics stay in" in said[0]
    track._client = real
    track.close("FINISHED", print)
    assert history(tmp_path, track.run_id, "a") == [(1, 1.0)]


def test_a_server_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"MLflow at http://127\.0\.0\.1:9 cannot be used: .*refused\n.*track\.uri"
    ):
        PipelineTrack("http://127.0.0.1:9", "test", "one", tmp_path)


def test_passwords_are_not_shown() -> None:
    assert shown("http://me:secret@host:1/x") == "http://host:1/x"
