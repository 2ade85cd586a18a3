"""avg@k, its standard error and the other figures, against numbers worked out by hand."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.trajectory import Rollout, StopReason, ToolCall
from tasks.scores import Attempt, score, score_attempts

ANSWERED, LENGTH = StopReason.ANSWERED, StopReason.LENGTH


def rollout(
    reward: float, stop: StopReason = ANSWERED, tokens: int = 10, failed: tuple[bool, ...] = ()
) -> Rollout:
    calls = [ToolCall("error" if bad else "ok", bad) for bad in failed]
    return Rollout(
        "p", [1], [1] * tokens, [1] * tokens, [0.0] * tokens, calls=calls, stop=stop, reward=reward
    )


def test_figures_by_hand() -> None:
    scores = score(
        [
            [rollout(1, failed=(True, False)), rollout(0, tokens=30, failed=(True,))],
            [rollout(1, failed=(False,)), rollout(1)],
            [rollout(0, LENGTH), rollout(0, LENGTH)],
        ]
    )
    assert (scores.problems, scores.samples) == (3, 2)
    assert scores.accuracy == pytest.approx(0.5)
    # the problems' means are 0.5, 1, 0: their standard deviation is 0.5
    assert scores.accuracy_stderr == pytest.approx(0.5 / math.sqrt(3))
    assert scores.pass_at_k == pytest.approx(2 / 3)
    assert scores.mean_tokens == pytest.approx(80 / 6)
    assert scores.tool_calls == pytest.approx(4 / 6)
    assert scores.tool_error_rate == pytest.approx(2 / 4)
    assert scores.tool_error_rate_correct == pytest.approx(1 / 3)
    assert scores.stop_reasons["answered"] == 4
    assert scores.stop_reasons["length"] == 2
    assert set(scores.stop_reasons) == {str(reason) for reason in StopReason}


def test_a_problem_without_attempts_is_unsolved_and_has_no_tokens() -> None:
    scores = score_attempts([[Attempt(1.0, ANSWERED, 10, 1, 0)], []])
    assert scores.accuracy == 0.5
    assert scores.pass_at_k == 0.5
    assert scores.mean_tokens == 10


def test_figures_that_there_are_none_of_are_still_json() -> None:
    one = score([[rollout(1)]]).as_dict()
    assert one["accuracy_stderr"] is None
    nothing = score_attempts([[], []]).as_dict()
    assert (nothing["accuracy"], nothing["mean_tokens"], nothing["tool_error_rate"]) == (
        0.0,
        0.0,
        0.0,
    )
    json.dumps([one, nothing], allow_nan=False)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=20))
def test_accuracy_lies_between_always_and_ever(solved: list[list[bool]]) -> None:
    scores = score([[rollout(float(one)) for one in group] for group in solved])
    always = sum(map(all, solved)) / len(solved)
    assert always - 1e-9 <= scores.accuracy <= scores.pass_at_k + 1e-9
    assert scores.accuracy_stderr >= 0
