"""How long responses are expected to get: the lengths of the last step, or a prior before there was one.

Lengths are in tokens, tool responses included, prompt apart. A policy changes little in a step, so the last
step's lengths say well what the next step's will be. Lengths seen so far within a step do not: the short
ones end first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

PRIOR_POINTS = 100


@dataclass(frozen=True)
class Lengths:
    """A sample of response lengths, ascending and never empty."""

    tokens: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Iterable[int]) -> Lengths:
        return cls(tuple(sorted(tokens)))

    @classmethod
    def prior(cls, longest: float) -> Lengths:
        """Every length up to `longest` is as likely as another."""
        return cls.of(
            max(1, round(longest * (i + 0.5) / PRIOR_POINTS)) for i in range(PRIOR_POINTS)
        )

    @cached_property
    def mean(self) -> float:
        return sum(self.tokens) / len(self.tokens)

    def lockstep_peak(self, prompt_tokens: float) -> float:
        """Most KV that a rollout holds on average at one time, if all start together.

        Short ones leave before the long ones have grown: max over h of (prompt + h) x share longer than h.
        """
        n = len(self.tokens)
        return max((prompt_tokens + h) * (n - i) / n for i, h in enumerate(self.tokens))
