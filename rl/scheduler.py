"""Which engine gets which rollout: a pure state machine, without I/O and without a clock.

The rollouts of a group are dealt over the engines (so no engine gets all the long ones), and a rollout
stays where it was placed, because moving a conversation costs its prefill again. An engine that is lost
gives its rollouts back to be placed elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Scheduler:
    """Deals rollouts, named by integers, to the least loaded engine."""

    engines: int
    placed: dict[int, int] = field(default_factory=dict)  # rollout -> engine
    load: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.load = [0] * self.engines

    def place(self, rollout: int) -> int:
        """The engine for `rollout`; the same again until it is finished or its engine is lost."""
        if rollout not in self.placed:
            engine = self.load.index(min(self.load))
            self.placed[rollout] = engine
            self.load[engine] += 1
        return self.placed[rollout]

    def finish(self, rollout: int) -> None:
        self.load[self.placed.pop(rollout)] -= 1

    def lose(self, engine: int) -> list[int]:
        """Forget the placements on a lost engine; returns its rollouts."""
        lost = [rollout for rollout, where in self.placed.items() if where == engine]
        for rollout in lost:
            self.finish(rollout)
        return lost
