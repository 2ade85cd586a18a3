"""A rollout for people: what the model wrote, what it called and what came back, turn by turn."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from rl.template import parse_turn
from rl.trajectory import Problem, Rollout, ToolCall


class TranscriptCall(BaseModel):
    """One call; `result` is the tool's text before it is cut to the tool-response budget."""

    model_config = ConfigDict(extra="forbid")

    status: str
    failed: bool
    seconds: float
    result: str


class TranscriptTurn(BaseModel):
    """One turn of the model and the results of its calls."""

    model_config = ConfigDict(extra="forbid")

    text: str
    calls: list[TranscriptCall]


class Transcript(BaseModel):
    """One rollout with its problem."""

    model_config = ConfigDict(extra="forbid")

    benchmark: str
    problem_id: str
    problem: str
    answer: str
    reward: float
    stop: str
    tokens: int
    turns: list[TranscriptTurn]

    @property
    def failed_calls(self) -> int:
        return sum(call.failed for turn in self.turns for call in turn.calls)


def transcribe(benchmark: str, problem: Problem, rollout: Rollout, tool_name: str) -> Transcript:
    """`rollout` as text. Its calls, kept in order, are dealt out to the turns that made them."""
    waiting = [_call(call) for call in rollout.calls]
    turns = []
    for text in rollout.turn_texts:
        made = len(parse_turn(text, tool_name).calls)
        turns.append(TranscriptTurn(text=text, calls=waiting[:made]))
        waiting = waiting[made:]
    return Transcript(
        benchmark=benchmark,
        problem_id=problem.id,
        problem=problem.text,
        answer=problem.answer,
        reward=rollout.reward,
        stop=str(rollout.stop),
        tokens=len(rollout.response_ids),
        turns=turns,
    )


def _call(call: ToolCall) -> TranscriptCall:
    return TranscriptCall(
        status=call.status, failed=call.failed, seconds=call.seconds, result=call.result
    )
