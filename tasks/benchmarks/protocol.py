"""What a benchmark is: problems, and how a finished rollout on one of them is judged.

Budgets, sampling and the number of samples are settings of stage `evaluate` and the same for every
benchmark; the conversation, its tool calls and its stop reasons are those of training. A benchmark with a
prompt of its own (multiple choice, say) writes it into the problem's text.
"""

from __future__ import annotations

from typing import Protocol

from rl.trajectory import Problem, Rollout


class Benchmark(Protocol):
    """A set of problems under a name. Subclass it: only `problems` must be written."""

    name: str

    def problems(self) -> list[Problem]:
        """All problems, in a fixed order, with unique ids. Raises `UserError` about data that cannot be read."""
        ...

    def reward(self, problem: Problem, rollout: Rollout) -> float:
        """1 if `rollout` solves `problem`, else 0. By default the reward of training: the last `\\boxed{}` of
        its `<answer>`, verified equal to the problem's answer."""
        return rollout.reward
