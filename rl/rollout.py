"""One coroutine a rollout: generate, parse, call the tool, append, until a StopReason (section 2.2).

Token in, token out: the ids that the engine sampled are the ids that are trained. History is never
rendered again; a tool result is appended as template tokens, and each turn asserts that the engine
continued exactly the ids that it was given. Scripts of one turn run at once; cells run in order, each after
all cells before it that left a state, failed ones too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rl.config import RolloutConfig
from rl.template import BadCall, Call, Template
from rl.trajectory import PARSE_ERROR, Problem, Rollout, StopReason, ToolCall
from sandbox.outcome import Outcome, Status
from sandbox.tool import ToolMode, leaves_state, parse_error_text, result_text


@dataclass(frozen=True)
class Generation:
    """What the engine sampled for one turn; the stop token, if any, is included."""

    prompt_ids: list[int]  # as the engine saw them
    ids: list[int]
    logprobs: list[float]
    stopped: bool  # False: the token limit came first
    weight_version: int


Generate = Callable[[list[int], int], Awaitable[Generation]]  # (ids, max new tokens)
RunCode = Callable[[str, str, Sequence[str]], Awaitable[Outcome]]  # (code, stdin, earlier cells)


class ToolFault(Exception):
    """The sandbox could not serve a call. No failure of the model."""


async def roll_out(
    problem: Problem, template: Template, config: RolloutConfig, generate: Generate, run_code: RunCode
) -> Rollout:
    """Roll out one conversation. Faults of ours end it as `StopReason.ERROR`, with the reason."""
    rollout = Rollout(problem.id, template.prompt_ids(problem.text))
    if len(rollout.prompt_ids) > config.prompt_tokens:
        raise ValueError(
            f"problem {problem.id} has a prompt of {len(rollout.prompt_ids)} tokens, rollout.prompt_tokens is "
            f"{config.prompt_tokens}: longer ones must be dropped before"
        )
    began = time.monotonic()
    try:
        async with asyncio.timeout(config.deadline_s):
            rollout.stop = await _converse(rollout, template, config, generate, run_code)
    except (ToolFault, TimeoutError) as fault:
        rollout.stop = StopReason.ERROR
        rollout.error = str(fault) or f"no end within {config.deadline_s:g} s"
    rollout.wall_s = time.monotonic() - began
    rollout.check()
    return rollout


async def _converse(
    rollout: Rollout, template: Template, config: RolloutConfig, generate: Generate, run_code: RunCode
) -> StopReason:
    ids = list(rollout.prompt_ids)
    cells: list[str] = []
    for turn_number in range(1, config.turns + 1):
        generation = await generate(ids, config.response_tokens - len(rollout.response_ids))
        if generation.prompt_ids != ids:
            raise AssertionError(f"{rollout.problem_id}: the engine changed the ids of turn {turn_number}")
        if turn_number == 1:
            rollout.weight_version = generation.weight_version
        elif rollout.weight_version != generation.weight_version:
            raise AssertionError(f"{rollout.problem_id}: weights changed within the rollout")
        _append(rollout, ids, generation.ids, generation.logprobs)
        text = template.decode(generation.ids)
        rollout.turn_texts.append(text)
        if not generation.stopped:
            return StopReason.LENGTH
        turn = template.parse_turn(text)
        if not turn.calls:
            return StopReason.ANSWERED if turn.answered else StopReason.NO_CALL
        if turn_number == config.turns:
            return StopReason.TURN_LIMIT
        began = time.monotonic()
        calls = await _call_tools(turn.calls, template.config.tool_mode, cells, run_code)
        rollout.tool_wait_s += time.monotonic() - began
        rollout.calls.extend(call for call, _ in calls)
        rollout.isolation = next((name for _, name in calls if name), rollout.isolation)
        suffix = template.tool_suffix_ids([call.result for call, _ in calls], config.tool_response_tokens)
        if len(rollout.response_ids) + len(suffix) >= config.response_tokens:
            return StopReason.TOOL_OVERFLOW
        _append(rollout, ids, suffix, None)
    raise AssertionError("unreachable: the last turn returns")


def _append(rollout: Rollout, ids: list[int], new: list[int], logprobs: list[float] | None) -> None:
    sampled = logprobs is not None
    ids.extend(new)
    rollout.response_ids.extend(new)
    rollout.mask.extend([int(sampled)] * len(new))
    rollout.logprobs.extend(logprobs if logprobs is not None else [0.0] * len(new))


async def _call_tools(
    calls: Sequence[Call | BadCall], mode: ToolMode, cells: list[str], run_code: RunCode
) -> list[tuple[ToolCall, str]]:
    """The calls of a turn; each with the isolation that served it ("" for a parse error). `cells` grows."""
    if mode == "script":
        return list(await asyncio.gather(*(_call_tool(call, (), run_code) for call in calls)))
    made = []
    for call in calls:
        made.append(await _call_tool(call, tuple(cells), run_code))
        if isinstance(call, Call) and leaves_state(Status(made[-1][0].status)):
            cells.append(call.arguments["code"])
    return made


async def _call_tool(
    call: Call | BadCall, history: Sequence[str], run_code: RunCode
) -> tuple[ToolCall, str]:
    if isinstance(call, BadCall):
        return ToolCall(PARSE_ERROR, True, result=parse_error_text(call.reason)), ""
    code = call.arguments["code"]
    began = time.monotonic()
    outcome = await run_code(code, call.arguments.get("input", ""), history)
    if outcome.status.infrastructure:
        raise ToolFault(f"sandbox: {outcome.status} after {outcome.attempt} attempts: {outcome.stderr}")
    made = ToolCall(
        status=str(outcome.status),
        failed=outcome.status.failed,
        seconds=time.monotonic() - began,
        code=code,
        result=result_text(outcome),
        queue_s=outcome.queue_s,
        cpu_s=outcome.cpu_s,
        attempt=outcome.attempt,
    )
    return made, outcome.isolation
