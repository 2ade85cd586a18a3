"""From settings to benchmarks, and what a newcomer's benchmark has to write."""

import json
from pathlib import Path

import pytest

from rl.trajectory import Problem, Rollout, StopReason
from sandbox.errors import UserError
from tasks.benchmarks.find import Sources, find
from tasks.benchmarks.protocol import Benchmark


def sources(curated: Path | None = None) -> Sources:
    return Sources(curated, held_out_problems=2)


def write(path: Path, count: int) -> Path:
    rows = ({"id": f"p{i}", "problem": f"{i} + 1?", "answer": i + 1} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_held_out_takes_as_many_problems_as_the_stages_do(tmp_path: Path) -> None:
    write(tmp_path / "held_out.jsonl", 5)
    (benchmark,) = find(["held_out"], sources(tmp_path))
    assert (benchmark.name, [problem.id for problem in benchmark.problems()]) == (
        "held_out",
        ["p0", "p1"],
    )


def test_a_file_is_named_after_itself_and_taken_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "AIME 2024 (I).jsonl", 3)
    (benchmark,) = find([str(path)], sources())
    assert (benchmark.name, len(benchmark.problems())) == ("AIME_2024_I_", 3)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (["aime99"], "no benchmark 'aime99'; give held_out, or a JSONL file"),
        ([], "evaluate.benchmarks is empty"),
        (["a/x.jsonl", "b/x.jsonl"], "x is there twice"),
    ],
)
def test_wrong_wishes(wanted: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        find(wanted, sources())


def test_held_out_without_curated_data_says_what_to_give() -> None:
    (benchmark,) = find(["held_out"], sources())
    with pytest.raises(UserError, match="needs a curate stage"):
        benchmark.problems()


def test_a_benchmark_may_judge_by_itself() -> None:
    class Short(Benchmark):
        name = "short"

        def problems(self) -> list[Problem]:
            return [Problem("p", "Say nothing.", "")]

        def reward(self, problem: Problem, rollout: Rollout) -> float:
            return float(len(rollout.turn_texts[0]) < 5)

    (problem,) = Short().problems()
    said = Rollout("p", [1], turn_texts=["."], stop=StopReason.NO_CALL)
    assert Short().reward(problem, said) == 1.0
    assert Benchmark.reward(Short(), problem, said) == said.reward == 0.0
