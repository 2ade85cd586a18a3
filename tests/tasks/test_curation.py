"""Curation: the demo's problems and conversations are what they claim, and bad files are named."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.config import TemplateConfig
from rl.template import BadCall, Call, parse_turn, user_text
from sandbox.config import SandboxConfig
from sandbox.errors import UserError
from sandbox.outcome import Outcome, Status
from sandbox.tool import result_text
from tasks.config import CurateConfig
from tasks.curation import demo, files, stage
from tasks.curation.calls import run_programs
from tests.tasks.stages import context, curate_spec

TOOL = TemplateConfig().tool_name
ROWS = {"source": "demo", "sft_rows": 40, "pool_problems": 20, "held_out_problems": 10}


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of the demo's curation; every program ran in a sandbox."""
    ctx = context(tmp_path_factory.mktemp("runs"), curate_spec(**ROWS))
    stage.run(ctx)
    status = ctx.stage.status()
    assert status is not None
    assert status.ran_on["isolation"]
    return ctx.outputs


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_time(text: str) -> str:
    return re.sub(r"execution time: [\d.]+", "execution time: ?", text)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(
    curated: Path, tmp_path: Path
) -> None:
    again, other = (
        context(tmp_path, curate_spec(**ROWS)),
        context(tmp_path, curate_spec(seed=1, **ROWS)),
    )
    stage.run(again)
    stage.run(other)
    for name in ("sft.jsonl", "pool.jsonl", "held_out.jsonl", "tokenizer/tokenizer.json"):
        assert (again.outputs / name).read_bytes() == (curated / name).read_bytes()
        assert (other.outputs / name).read_bytes() != (curated / name).read_bytes()


def test_sft_pool_and_held_out_problems_are_disjoint(curated: Path) -> None:
    pool = [row["problem"] for row in rows(curated / "pool.jsonl")]
    held_out = [row["problem"] for row in rows(curated / "held_out.jsonl")]
    asked = [row["messages"][0]["content"] for row in rows(curated / "sft.jsonl")]
    everything = [user_text(problem) for problem in pool + held_out] + asked
    assert (len(asked), len(pool), len(held_out)) == (40, 20, 10)
    assert len(set(everything)) == len(everything)


def test_tool_messages_are_the_live_tools_text(curated: Path) -> None:
    said: dict[str, str] = {}
    for row in rows(curated / "sft.jsonl"):
        for message, following in zip(row["messages"], row["messages"][1:], strict=False):
            for call in parse_turn(message["content"], TOOL).calls:
                if isinstance(call, Call):
                    said[call.arguments["code"]] = following["content"]
                else:
                    assert call.reason in following["content"]
    codes = list(said)[:12]
    outcomes, _ = run_programs(codes, SandboxConfig(), lambda done: None)
    for code in codes:
        live = without_time(result_text(outcomes[code]))
        # A long traceback is cut in the middle: what is left must be its head and its tail.
        head, _, tail = without_time(said[code]).partition(" ... ")
        assert live.startswith(head)
        assert live.endswith(tail)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_right_programs_print_the_answer_and_wrong_ones_mostly_do_not(seed: int) -> None:
    wrong = coincidences = 0
    for problem in demo.problems(30, random.Random(seed)):
        assert _run(problem.right).stdout.strip() == str(problem.answer)
        for code in problem.wrong:
            wrong += 1
            coincidences += _run(code).stdout.strip() == str(problem.answer)
    assert coincidences < wrong / 5


def test_conversations_are_imperfect_as_planned() -> None:
    rng = random.Random(0)
    plans = [demo.draft(problem, rng) for problem in demo.problems(3000, rng)]
    firsts = [plan.steps[0] for plan in plans]
    failing = sum(_run(step.code).status is Status.ERROR or not step.complete for step in firsts)
    wrong = sum(plan.steps[-1].code != plan.problem.right for plan in plans)
    assert failing / 3000 == pytest.approx(demo.FAILS_FIRST, abs=0.04)
    assert wrong / 3000 == pytest.approx(demo.WRONG_PROGRAM, abs=0.04)
    assert sum(not plan.answers for plan in plans) / 3000 == pytest.approx(demo.NO_ANSWER, abs=0.02)
    assert any(len(plan.steps) == 3 for plan in plans)


def test_every_turn_of_a_conversation_is_read_as_it_was_meant() -> None:
    rng = random.Random(1)
    for problem in demo.problems(200, rng):
        plan = demo.draft(problem, rng)
        outcomes = {step.code: _run(step.code) for step in plan.steps}
        messages = demo.conversation(plan, outcomes, TOOL, rng)
        turns = [parse_turn(m["content"], TOOL) for m in messages if m["role"] == "assistant"]
        assert [m["role"] for m in messages] == [
            "user",
            *["assistant", "tool"] * len(plan.steps),
            "assistant",
        ]
        for step, turn in zip(plan.steps, turns[:-1], strict=True):
            assert isinstance(turn.calls[0], Call if step.complete else BadCall)
        assert turns[-1].answered == plan.answers
        assert not turns[-1].calls


def test_more_problems_than_a_family_has_are_refused() -> None:
    with pytest.raises(ValueError, match="were asked for"):
        demo.problems(1_000_000, random.Random(0))


def _run(code: str) -> Outcome:
    """The demo's programs are ours and harmless, so a property test may run them here."""
    printed: list[str] = []
    try:
        exec(
            compile(code, "main.py", "exec"), {"print": lambda value: printed.append(f"{value}\n")}
        )
    except (SyntaxError, NameError) as error:
        return Outcome(Status.ERROR, exit_code=1, stderr=str(error))
    return Outcome(Status.OK, exit_code=0, stdout="".join(printed))


def config(tmp_path: Path, **texts: str) -> CurateConfig:
    good = {
        "sft": '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n',
        "pool": '{"problem": "1+1?", "answer": 2}\n{"problem": " 2+2? ", "answer": "4"}\n',
        "held_out": '{"id": "a", "problem": "2+2?", "answer": "4"}\n',
    }
    for name, text in (good | texts).items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    paths = {f"{name}_file": str(tmp_path / f"{name}.jsonl") for name in good}
    return CurateConfig(source="files", **paths)


def test_files_are_read_and_held_out_problems_leave_the_pool(tmp_path: Path) -> None:
    dataset = files.read(config(tmp_path))
    assert [problem.text for problem in dataset.pool] == ["1+1?"]
    assert [problem.answer for problem in dataset.held_out] == ["4"]
    assert dataset.sft[0][1]["content"] == "Hello"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("sft", "", "sft.jsonl: the file has no rows"),
        ("sft", "{}\n{", "sft.jsonl, row 1: expected a column messages"),
        ("sft", "\n{", "sft.jsonl, row 2: not valid JSON"),
        ("sft", '{"messages": ["Hi"]}', "row 1: message 0 is not an object"),
        (
            "sft",
            '{"messages": [{"role": "human", "content": "Hi"}]}',
            "message 0 has the role 'human'",
        ),
        (
            "sft",
            '{"messages": [{"role": "user", "content": 3}]}',
            "message 0 has a content of type int",
        ),
        ("sft", '{"messages": [{"role": "user", "content": "Hi"}]}', "nothing to train on"),
        ("pool", "", "pool.jsonl: the file has no rows"),
        ("pool", '{"problem": "1+1?"}', "pool.jsonl, row 1: answer missing"),
        ("held_out", '{"problem": "1", "answer": 1}\n[]', "held_out.jsonl, row 2"),
        (
            "pool",
            '{"id": "a", "problem": "1", "answer": 1}\n{"id": "a", "problem": "2", "answer": 2}',
            "row 2: id 'a'",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_row(
    tmp_path: Path, file: str, text: str, expected: str
) -> None:
    with pytest.raises(UserError) as error:
        files.read(config(tmp_path, **{file: text}))
    assert expected in str(error.value)


def test_a_missing_file_and_an_unset_key_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"curate\.sft_file is not set"):
        files.read(config(tmp_path).model_copy(update={"sft_file": None}))
    with pytest.raises(UserError, match=r"nowhere\.jsonl: no such file"):
        files.read(config(tmp_path).model_copy(update={"pool_file": "nowhere.jsonl"}))


def test_prompts_over_the_budget_are_dropped_and_none_left_is_an_error(tmp_path: Path) -> None:
    long = json.dumps({"problem": "What is 1+1? " * 200, "answer": "2"})
    curate = config(tmp_path, pool=long + '\n{"problem": "1+1?", "answer": 2}\n')
    ctx = context(tmp_path, curate_spec(**curate.model_dump()))
    stage.run(ctx)
    assert [row["problem"] for row in rows(ctx.outputs / "pool.jsonl")] == ["1+1?"]

    curate = config(tmp_path, pool=long)
    with pytest.raises(UserError, match="no pool problem has a prompt of at most"):
        stage.run(context(tmp_path, curate_spec(seed=1, **curate.model_dump())))
