"""What a step's tools cost, from calls with known times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.metrics import group_metrics, rollout_metrics, tool_metrics
from rl.roc import Rejection
from rl.trajectory import Rollout, StopReason, ToolCall
from sandbox.outcome import Status


def rollout(*calls: ToolCall, wall_s: float = 0.0, tool_wait_s: float = 0.0) -> Rollout:
    made = Rollout("p", [1], calls=list(calls), stop=StopReason.ANSWERED)
    made.response_ids, made.turn_texts = [1, 2], ["text"]
    made.wall_s, made.tool_wait_s = wall_s, tool_wait_s
    return made


def test_tool_time_counts_the_calls_that_were_served() -> None:
    ok = ToolCall("ok", False, 0.2, queue_s=0.05, cpu_s=0.01)
    slow = ToolCall("timeout", True, 1.0, queue_s=0.15, cpu_s=0.03, attempt=3)
    unread = ToolCall("parse_error", True)
    metrics = tool_metrics(
        [
            rollout(ok, unread, wall_s=4.0, tool_wait_s=0.2),
            rollout(ok, slow, wall_s=6.0, tool_wait_s=1.0),
            rollout(wall_s=2.0),
        ]
    )
    assert metrics["tool/calls"] == 3
    assert metrics["tool/seconds_sum"] == pytest.approx(1.4)
    assert metrics["tool/seconds_mean"] == pytest.approx(1.4 / 3)
    assert metrics["tool/seconds_p99"] == pytest.approx(0.2 + 0.98 * 0.8)
    assert metrics["tool/queue_seconds_sum"] == pytest.approx(0.25)
    assert metrics["tool/queue_seconds_p99"] == pytest.approx(0.05 + 0.98 * 0.1)
    assert metrics["tool/cpu_seconds_mean"] == pytest.approx(0.05 / 3)
    assert metrics["tool/wait_share"] == pytest.approx(1.2 / 12)
    assert metrics["tool/retries"] == 2
    by_status = {
        key: value for key, value in metrics.items() if key.startswith("tool/status/") and value
    }
    assert by_status == {
        "tool/status/ok": 2,
        "tool/status/timeout": 1,
        "tool/status/parse_error": 1,
    }


def test_a_step_without_calls_has_the_same_keys() -> None:
    none = tool_metrics([rollout()])
    assert set(none) == set(tool_metrics([rollout(ToolCall("ok", False, 1.0))]))
    assert set(none.values()) == {0.0}


own = [str(status) for status in Status if not status.infrastructure]
calls = st.builds(
    ToolCall,
    status=st.sampled_from([*own, "parse_error"]),
    failed=st.booleans(),
    seconds=st.floats(0, 100),
    queue_s=st.floats(0, 100),
    cpu_s=st.floats(0, 100),
    attempt=st.integers(1, 5),
)


@given(st.lists(st.lists(calls, max_size=4), min_size=1, max_size=6))
def test_every_call_has_a_place(made: list[list[ToolCall]]) -> None:
    metrics = tool_metrics([rollout(*group) for group in made])
    statuses = {key: value for key, value in metrics.items() if key.startswith("tool/status/")}
    assert sum(statuses.values()) == sum(map(len, made))
    assert metrics["tool/calls"] + statuses["tool/status/parse_error"] == sum(map(len, made))
    for name in ("seconds", "queue_seconds", "cpu_seconds"):
        total, mean, p99 = (metrics[f"tool/{name}_{kind}"] for kind in ("sum", "mean", "p99"))
        assert total == pytest.approx(mean * max(1, metrics["tool/calls"]))
        assert 0 <= p99 <= total * (1 + 1e-9)
    assert all(np.isfinite(list(metrics.values())))


def test_a_step_reports_tool_time_and_leaves_out_rollouts_that_we_failed() -> None:
    served = rollout(ToolCall("ok", False, 0.5), wall_s=1.0, tool_wait_s=0.5)
    failed = rollout(ToolCall("ok", False, 9.0), wall_s=9.0)
    failed.stop = StopReason.ERROR
    metrics = group_metrics([[served, failed]], [Rejection.SHORT])
    assert metrics["tool/seconds_sum"] == 0.5
    assert metrics["tool/wait_share"] == 0.5
    assert rollout_metrics([failed]) == {"errors": 1.0}
