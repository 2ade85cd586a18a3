"""The turn loop, driven by a scripted sampler: every StopReason, masks, budgets, faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from rl.config import RolloutConfig, TemplateConfig
from rl.rollout import Generation, roll_out
from rl.template import Template
from rl.trajectory import Problem, StopReason
from sandbox.client import SandboxClient
from sandbox.outcome import Outcome, Status
from tasks.tiny import build_tokenizer
from tests.sandbox.support import sandbox_at

PROBLEM = Problem("p", "What is 1 + 1?", "2")
ANSWER = "<reason>sum</reason><answer>\\boxed{2}</answer>"
NAME = TemplateConfig().tool_name


def call(code: str = "print(2)", **changes: object) -> str:
    arguments = {"code": code, "input": ""} | changes
    return "<tool_call>" + json.dumps({"name": NAME, "arguments": arguments}) + "</tool_call>"


@pytest.fixture(scope="module")
def template() -> Template:
    texts = [ANSWER, call(), "stdout: 2 execution time: 0.01 seconds"] * 20
    return Template(build_tokenizer(texts, 700, TemplateConfig()), TemplateConfig())


async def run(template, written, outcome=None, **settings):
    """Roll out with the model writing `written`, a string a turn; one over the limit is cut as engines do."""
    script = iter(written)

    async def generate(ids: list[int], limit: int) -> Generation:
        new = [*template.tokenizer.encode(next(script), add_special_tokens=False), template.stop_id]
        return Generation(list(ids), new[:limit], [-0.5] * len(new[:limit]), len(new) <= limit, 3)

    async def run_code(code: str, stdin: str, history: Sequence[str]) -> Outcome:
        assert history == ()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome or Outcome(Status.OK, 0, stdout="2\n", isolation="docker")

    config = RolloutConfig(**({"response_tokens": 400, "turns": 3} | settings))
    return await roll_out(PROBLEM, template, config, generate, run_code)


async def test_call_then_answer(template):
    rollout = await run(template, [call(), ANSWER])
    assert rollout.stop is StopReason.ANSWERED
    assert rollout.turns == 2 and [c.status for c in rollout.calls] == ["ok"]
    assert rollout.weight_version == 3 and rollout.isolation == "docker"
    sampled = [t for t, m in zip(rollout.response_ids, rollout.mask, strict=True) if m]
    assert template.decode(sampled) == call() + "<|im_end|>" + ANSWER + "<|im_end|>"
    inserted = [t for t, m in zip(rollout.response_ids, rollout.mask, strict=True) if not m]
    assert "<tool_response>" in template.decode(inserted)
    assert {p for p, m in zip(rollout.logprobs, rollout.mask, strict=True) if m} == {-0.5}
    assert {p for p, m in zip(rollout.logprobs, rollout.mask, strict=True) if not m} == {0.0}


async def test_the_conversation_equals_the_rendered_template(template):
    rollout = await run(template, [call(), ANSWER])
    from rl.template import user_text

    messages = [
        {"role": "user", "content": user_text(PROBLEM.text)},
        {"role": "assistant", "content": call()},
        {"role": "tool", "content": rollout.calls[0].result},
        {"role": "assistant", "content": ANSWER},
    ]
    rendered = template.tokenizer.apply_chat_template(
        messages, chat_template=template.chat_template, tokenize=False
    )
    whole = template.tokenizer.encode(rendered, add_special_tokens=False)
    ours = rollout.prompt_ids + rollout.response_ids
    assert whole[: len(ours)] == ours
    assert template.decode(whole[len(ours) :]) == "\n"


@pytest.mark.parametrize(
    ("turns", "settings", "stop"),
    [
        (["<reason>only thinking</reason>"], {}, StopReason.NO_CALL),
        ([call(), call()], {"turns": 2}, StopReason.TURN_LIMIT),
        ([ANSWER * 5], {"response_tokens": 20}, StopReason.LENGTH),
    ],
)
async def test_every_end(template, turns, settings, stop):
    rollout = await run(template, turns, **settings)
    assert rollout.stop is stop
    assert len(rollout.response_ids) <= settings.get("response_tokens", 400)
    assert rollout.mask[-1] == 1


async def test_a_tool_response_that_passes_the_budget_is_not_appended(template):
    used = len(template.tokenizer.encode(call(), add_special_tokens=False)) + 1
    rollout = await run(template, [call()], response_tokens=used + 4)
    assert rollout.stop is StopReason.TOOL_OVERFLOW
    assert len(rollout.response_ids) == used and rollout.mask.count(0) == 0
    assert len(rollout.calls) == 1


@pytest.mark.parametrize(
    "bad",
    [
        "<tool_call>{not json}</tool_call>",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        call(input=5),
        call(extra="x"),
        "<tool_call>"
        + json.dumps({"name": NAME, "arguments": {"code": "print(1)"}})
        + "</tool_call>",
        "<tool_call>{}",
    ],
)
async def test_a_malformed_call_is_answered_with_what_is_wrong(template, bad):
    rollout = await run(template, [bad, ANSWER])
    assert rollout.stop is StopReason.ANSWERED
    assert [(c.status, c.failed) for c in rollout.calls] == [("parse_error", True)]
    assert rollout.failed_calls == 1


@pytest.mark.parametrize(
    "status", [s for s in Status if not s.infrastructure and s is not Status.OK]
)
async def test_a_program_that_fails_is_a_failed_call(template, status):
    rollout = await run(
        template, [call(), ANSWER], Outcome(status, 1, stderr="boom", isolation="docker")
    )
    assert rollout.failed_calls == 1 and rollout.stop is StopReason.ANSWERED


async def test_text_on_stderr_is_no_failure(template):
    outcome = Outcome(
        Status.OK, 0, stdout="mean error: 0.1", stderr="Warning: error", isolation="docker"
    )
    assert (await run(template, [call(), ANSWER], outcome)).failed_calls == 0


@pytest.mark.parametrize("status", [s for s in Status if s.infrastructure])
async def test_a_fault_of_the_sandbox_is_an_error_and_no_failed_call(template, status):
    rollout = await run(template, [call(), ANSWER], Outcome(status, isolation="docker"))
    assert rollout.stop is StopReason.ERROR
    assert rollout.failed_calls == 0 and str(status) in rollout.error


async def test_a_long_tool_response_is_cut_by_tokens(template):
    outcome = Outcome(Status.OK, 0, stdout="9" * 3000, isolation="docker")
    rollout = await run(template, [call(), ANSWER], outcome, tool_response_tokens=40)
    inserted = rollout.mask.count(0)
    assert 40 <= inserted < 40 + 30  # the response itself and the template's tokens around it


async def test_the_deadline_ends_a_rollout_as_error(template):
    async def never(ids: list[int], limit: int) -> Generation:
        await asyncio.sleep(60)
        raise AssertionError("unreachable")

    rollout = await roll_out(PROBLEM, template, RolloutConfig(deadline_s=0.05), never, None)
    assert rollout.stop is StopReason.ERROR and "0.05 s" in rollout.error


async def test_an_engine_that_changes_ids_is_an_error(template):
    async def generate(ids: list[int], limit: int) -> Generation:
        return Generation([*ids[:-1], 0], [template.stop_id], [-0.1], True, 0)

    with pytest.raises(AssertionError, match="changed the ids"):
        await roll_out(PROBLEM, template, RolloutConfig(), generate, None)


async def test_new_weights_within_a_rollout_are_an_error(template):
    versions = iter([1, 2])

    async def generate(ids: list[int], limit: int) -> Generation:
        new = [*template.tokenizer.encode(call(), add_special_tokens=False), template.stop_id]
        return Generation(list(ids), new, [-0.1] * len(new), True, next(versions))

    async def run_code(code: str, stdin: str, history: Sequence[str]) -> Outcome:
        return Outcome(Status.OK, 0)

    with pytest.raises(AssertionError, match="weights changed"):
        await roll_out(PROBLEM, template, RolloutConfig(), generate, run_code)


async def test_a_prompt_over_the_budget_is_refused(template):
    with pytest.raises(ValueError, match="prompt_tokens"):
        await run(template, [ANSWER], prompt_tokens=8)


def cell(*codes: str) -> str:
    calls = ({"name": "jupyter_code", "arguments": {"code": code}} for code in codes)
    return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


@pytest.fixture(scope="module")
def cells() -> Template:
    config = TemplateConfig(tool_mode="cell")
    return Template(build_tokenizer([ANSWER, cell("x = 1")] * 20, 700, config), config)


async def run_cells(cells: Template, written: list[str], ended: dict[str, Status]):
    """What the sandbox was asked, (cell, those before it) each, and the rollout; `ended`: not ok."""
    script = iter(written)
    asked: list[tuple[str, tuple[str, ...]]] = []

    async def generate(ids: list[int], limit: int) -> Generation:
        new = [*cells.tokenizer.encode(next(script), add_special_tokens=False), cells.stop_id]
        return Generation(list(ids), new, [-0.5] * len(new), True, 0)

    async def run_code(code: str, stdin: str, history: Sequence[str]) -> Outcome:
        asked.append((code, tuple(history)))
        await asyncio.sleep(0)
        assert stdin == ""
        return Outcome(ended.get(code, Status.OK), isolation="docker")

    config = RolloutConfig(response_tokens=2000, turns=9)
    return asked, await roll_out(PROBLEM, cells, config, generate, run_code)


async def test_a_cell_runs_after_all_before_it(cells):
    written = [cell("a"), cell("b", "c"), "<tool_call>{}</tool_call>" + cell("d"), ANSWER]
    asked, rollout = await run_cells(cells, written, {"b": Status.ERROR})
    assert asked == [("a", ()), ("b", ("a",)), ("c", ("a", "b")), ("d", ("a", "b", "c"))]
    assert [call.status for call in rollout.calls] == ["ok", "error", "ok", "parse_error", "ok"]
    assert rollout.failed_calls == 2 and rollout.stop is StopReason.ANSWERED


@pytest.mark.parametrize(
    "status", [s for s in Status if s not in (Status.OK, Status.ERROR) and not s.infrastructure]
)
async def test_a_cell_that_was_ended_is_not_run_again(cells, status):
    asked, rollout = await run_cells(
        cells, [cell("a"), cell("b"), cell("c"), ANSWER], {"b": status}
    )
    assert asked == [("a", ()), ("b", ("a",)), ("c", ("a",))]
    assert [call.failed for call in rollout.calls] == [False, True, False]


async def test_what_a_call_cost_is_kept(template):
    outcome = Outcome(Status.OK, 0, queue_s=0.25, cpu_s=0.125, attempt=3, isolation="docker")
    rollout = await run(template, [call(), "<tool_call>{}</tool_call>", ANSWER], outcome)
    served, unread = rollout.calls
    assert (served.queue_s, served.cpu_s, served.attempt) == (0.25, 0.125, 3)
    assert (unread.seconds, unread.queue_s, unread.cpu_s, unread.attempt) == (0, 0, 0, 1)
    assert 0 < served.seconds <= rollout.tool_wait_s < rollout.wall_s


@pytest.mark.parametrize("level", [pytest.param("docker", marks=pytest.mark.docker), "ns-root"])
async def test_cells_in_the_sandbox_keep_their_state(cells, level):
    script = iter([cell("x = 20", "x / 0"), cell("x += 1\nx * 2"), ANSWER])

    async def generate(ids: list[int], limit: int) -> Generation:
        new = [*cells.tokenizer.encode(next(script), add_special_tokens=False), cells.stop_id]
        return Generation(list(ids), new, [-0.5] * len(new), True, 0)

    with sandbox_at(level) as sandbox:
        client = SandboxClient(sandbox.endpoint)

        async def run_code(code: str, stdin: str, history: Sequence[str]) -> Outcome:
            return await client.run(code, stdin, mode="cell", history=history)

        config = RolloutConfig(response_tokens=2000, turns=9)
        rollout = await roll_out(PROBLEM, cells, config, generate, run_code)
        await client.close()
    assert [call.status for call in rollout.calls] == ["ok", "error", "ok"]
    assert rollout.isolation == level
    assert "  Cell 2, line 1, in <module>\n    x / 0\n" in rollout.calls[1].result
    assert rollout.calls[2].result.startswith(
        "Tool call success\nstdout: 42\nstderr: replay: cell 2: ZeroDivisionError: division by zero\n"
    )
    assert all(call.cpu_s > 0 for call in rollout.calls)
