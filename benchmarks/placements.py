"""What the scheduler is compared with: everything at once, or at most so many rollouts an engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class _Blind:
    """A policy that looks at neither contexts nor readings."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()

    def submit(self, rollout: int, group: int, prompt_tokens: int) -> None:
        self.queue.append(rollout)

    def progress(self, rollout: int, context_tokens: int) -> None: ...

    def observe(self, engine: int, kv_used_tokens: int, running: int, waiting: int) -> None: ...


class Static(_Blind):
    """All rollouts start at once, each on the engine that `engine_of` names."""

    def __init__(self, engine_of: Callable[[int], int]) -> None:
        super().__init__()
        self.engine_of = engine_of

    def ready(self) -> list[tuple[int, int]]:
        placements = [(rollout, self.engine_of(rollout)) for rollout in self.queue]
        self.queue.clear()
        return placements

    def finish(self, rollout: int, response_tokens: int | None = None) -> None: ...


class Capped(_Blind):
    """At most `cap` rollouts an engine, each on the engine that has the fewest."""

    def __init__(self, engines: int, cap: int) -> None:
        super().__init__()
        self.cap, self.load = cap, [0] * engines
        self.engine_of: dict[int, int] = {}

    def ready(self) -> list[tuple[int, int]]:
        placements = []
        while self.queue and min(self.load) < self.cap:
            rollout, engine = self.queue.popleft(), self.load.index(min(self.load))
            self.load[engine] += 1
            self.engine_of[rollout] = engine
            placements.append((rollout, engine))
        return placements

    def finish(self, rollout: int, response_tokens: int | None = None) -> None:
        self.load[self.engine_of.pop(rollout)] -= 1
