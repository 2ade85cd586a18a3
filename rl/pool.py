"""The problems of an RL stage, in an endless seeded order.

Each epoch is a permutation of its own; the position is one number, so a resumed stage goes on with the
problem that comes next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl.trajectory import Problem


class Pool:
    def __init__(self, problems: Sequence[Problem], seed: int, cursor: int = 0) -> None:
        if not problems:
            raise ValueError("the problem pool is empty")
        self.problems, self.seed, self.cursor = problems, seed, cursor

    def take(self, count: int) -> list[Problem]:
        taken = [self._at(position) for position in range(self.cursor, self.cursor + count)]
        self.cursor += count
        return taken

    def _at(self, position: int) -> Problem:
        epoch, index = divmod(position, len(self.problems))
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.problems))
        return self.problems[order[index]]
