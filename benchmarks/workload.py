"""Rollouts for the cluster simulation, drawn from a description of a step.

Assumptions: response lengths are lognormal, cut at a cap (the response budget), with a given mean after the
cut; `group_share` of the variance of their logarithm belongs to the group (its problem), the rest to the
rollout; the number of tool calls is Poisson, they lie uniformly within the response, and no rollout has more
than one in 400 tokens; all prompts are equally long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.simulation import TOOL_TOKENS, Work

GROUP = 32  # rollouts a problem
TOKENS_PER_CALL = 400  # at least


@dataclass(frozen=True)
class Lengths:
    """What the rollouts of a step look like. Tool results count as response, as in the recipe's budget."""

    mean: int = 8000
    sigma: float = 0.6  # of the logarithm, before the cut
    cap: int = 12_000
    prompt: int = 500
    calls: float = 2.7
    group_share: float = 0.5

    def draw(self, rollouts: int, rng: np.random.Generator) -> list[Work]:
        groups = -(-rollouts // GROUP)
        ours = rng.standard_normal(groups).repeat(GROUP)[:rollouts]
        own = rng.standard_normal(rollouts)
        log = np.sqrt(self.group_share) * ours + np.sqrt(1 - self.group_share) * own
        tokens = np.minimum(np.exp(self._location() + self.sigma * log), self.cap).astype(int)
        calls = np.minimum(rng.poisson(self.calls, rollouts), tokens // TOKENS_PER_CALL)
        return [
            Work(i // GROUP, self.prompt, _turns(int(n), int(k), rng))
            for i, (n, k) in enumerate(zip(tokens, calls, strict=True))
        ]

    def _location(self) -> float:
        """Location of the lognormal whose mean, after the cut, is `mean`."""
        quantiles = np.random.default_rng(0).standard_normal(100_000)
        low, high = np.log(self.mean) - 3, np.log(self.mean) + 5
        for _ in range(40):
            middle = (low + high) / 2
            if np.minimum(np.exp(middle + self.sigma * quantiles), self.cap).mean() < self.mean:
                low = middle
            else:
                high = middle
        return float(low)


def _turns(response: int, calls: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Tokens generated in each turn."""
    generated = max(calls + 1, response - TOOL_TOKENS * calls)
    if calls == 0:
        return (generated,)
    cuts = np.sort(rng.choice(generated - 1, calls, replace=False) + 1)
    return tuple(int(n) for n in np.diff(np.concatenate([[0], cuts, [generated]])))
