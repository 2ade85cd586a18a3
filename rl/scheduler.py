"""Which engine gets which rollout, and when: a pure state machine, without I/O and without a clock.

Events go in (`submit`, `progress`, `observe`, `finish`, `lose`, `restore`, `end_step`); `ready()` gives the
placements that may happen. A rollout stays where it was placed, because moving a conversation costs its
prefill again. They start in the order of submission, those of a group on different engines, so that no engine
gets all the long ones.

*The gate.* An engine takes a rollout when the KV that all of its rollouts are expected to hold in the end,
plus that of the new one, is within its limit: `overbook` x its KV cache, and room for `saturation` / 3
rollouts more. Expected is prompt + mean response length of the last step (`lengths.py`), or the actual context
where that is longer. KV that is free at the moment says nothing: at the start every context is short. A
rollout that waits for a tool keeps its reservation. What the engine itself reports counts where it is more
than the ledger; rollouts that it doesn't report as running (on their way, waiting, in a tool call) count as
expected on top. An engine in which requests wait for KV takes nothing.
Overbooking is right because rollouts leave at different times. The room beyond is for caches that hold few
rollouts: below `saturation` sequences a step takes about as long with fewer of them, so that lost concurrency
costs more than computing a preempted context again.

*Off.* When all open rollouts, started together, would peak below `off_below` of the KV, all are placed at
once and only their number is balanced: there is nothing to gain, and waiting would cost. Where a cache holds
few rollouts the gate pays only at higher peaks, by the factor 1 + (`saturation` / rollouts held)^2.

*When the estimate is wrong.* Too low: an engine runs out of KV and preempts, that is, it computes some
contexts again, as it would without a gate. Too high by a factor f: an engine
holds at least 1/f of the rollouts that it could hold, until the next step has the right estimate. An engine
with nothing admitted takes a rollout whatever the estimate says, so nothing starves.

Invariants: a submitted rollout is either queued or placed on one living engine until it is finished; the
ledger of an engine is the sum of what its rollouts are expected to hold, and 0 when it has none.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rl.config import SchedulerConfig
from rl.lengths import Lengths

ENOUGH_LENGTHS = 32  # fewer finished rollouts are no estimate; they are kept for the next step
SPARE = (
    1 / 3
)  # of `saturation`, admitted beyond the overbooked KV; found in simulation (docs/placement.md)


@dataclass
class _Rollout:
    """An open rollout. `expected_tokens` is what the ledger holds for it, 0 while it is queued."""

    group: int
    prompt_tokens: int
    context_tokens: int = 0
    expected_tokens: int = 0
    engine: int | None = None


@dataclass
class _Engine:
    """The ledger of one engine and its own last reading."""

    kv_tokens: int
    alive: bool = True
    rollouts: set[int] = field(default_factory=set)
    groups: Counter[int] = field(default_factory=Counter)
    expected_tokens: int = 0
    kv_used_tokens: int = 0
    running: int = 0
    waiting: int = 0

    @property
    def reserved_tokens(self) -> float:
        if not self.rollouts:
            return 0.0
        unseen = max(0, len(self.rollouts) - self.running)
        reported = self.kv_used_tokens + unseen * self.expected_tokens / len(self.rollouts)
        return max(self.expected_tokens, reported)


class Scheduler:
    """Places rollouts, named by integers, on engines, named by their position in `kv_tokens`."""

    def __init__(
        self, kv_tokens: Sequence[int], context_tokens: int, config: SchedulerConfig
    ) -> None:
        """`kv_tokens` that each engine can hold; `context_tokens` that a rollout reaches at most."""
        self.config = config
        self.lengths = Lengths.prior(min(1.0, 2 * config.prior) * context_tokens)
        self.gated = False
        self._engines = [_Engine(tokens) for tokens in kv_tokens]
        self._open: dict[int, _Rollout] = {}
        self._queue: deque[int] = deque()  # also rollouts that ended meanwhile
        self._finished: list[int] = []
        self._undecided = False  # rollouts or engines came or went since `gated` was decided

    @property
    def placed(self) -> dict[int, int]:
        """Rollout -> engine."""
        return {name: r.engine for name, r in self._open.items() if r.engine is not None}

    @property
    def queued(self) -> int:
        """Rollouts that wait for a place."""
        return len(self._open) - sum(len(engine.rollouts) for engine in self._engines)

    @property
    def expected_tokens(self) -> list[int]:
        """The ledger: KV that each engine's rollouts are expected to hold in the end."""
        return [engine.expected_tokens for engine in self._engines]

    @property
    def peak(self) -> float:
        """Share of the living engines' KV that all open rollouts would need at most, started together."""
        kv_tokens = sum(engine.kv_tokens for engine in self._living)
        if not self._open or not kv_tokens:
            return 0.0
        return len(self._open) * self.lengths.lockstep_peak(self._mean_prompt) / kv_tokens

    @property
    def off_peak(self) -> float:
        """The peak below which the gate is off; the square is a fit to simulated break-even points."""
        kv_tokens = sum(engine.kv_tokens for engine in self._living)
        if not self._open or not kv_tokens:
            return 0.0
        final_tokens = self._mean_prompt + self.lengths.mean
        held = kv_tokens / len(self._living) / final_tokens
        return self.config.off_below * (1 + (self.config.saturation / held) ** 2)

    def submit(self, rollout: int, group: int, prompt_tokens: int) -> None:
        """Ask for a place. Submit a whole step before the first `ready()`: the gate is decided there."""
        if rollout in self._open:
            raise ValueError(f"rollout {rollout} was submitted before and is not finished")
        if not self._open:
            self.gated = False
        self._open[rollout] = _Rollout(group, prompt_tokens)
        self._queue.append(rollout)
        self._undecided = True

    def ready(self) -> list[tuple[int, int]]:
        """(rollout, engine) for every rollout that can start at this moment; they count as placed."""
        if self._undecided:
            # within a step never off again: what is left late in a step does not run in lockstep
            self.gated = self.gated or self.peak >= self.off_peak
            self._undecided = False
        placements = []
        while self._queue:
            rollout = self._queue[0]
            waiting = self._open.get(rollout)
            if waiting is not None and waiting.engine is None:  # else it ended before it was placed
                engine = self._choose(waiting)
                if engine is None:
                    break
                self._place(rollout, engine)
                placements.append((rollout, engine))
            self._queue.popleft()
        return placements

    def progress(self, rollout: int, context_tokens: int) -> None:
        """A placed rollout has reached `context_tokens`, prompt included."""
        self._open[rollout].context_tokens = context_tokens
        self._expect(self._open[rollout])

    def observe(self, engine: int, kv_used_tokens: int, running: int, waiting: int) -> None:
        """The engine's own reading: KV that running sequences hold, how many run, how many wait for KV."""
        reading = self._engines[engine]
        reading.kv_used_tokens, reading.running, reading.waiting = kv_used_tokens, running, waiting

    def finish(self, rollout: int, response_tokens: int | None = None) -> None:
        """Forget a rollout, placed or not. Without a length it says nothing about others (a fault)."""
        if self._open[rollout].engine is not None:
            self._displace(rollout)
        del self._open[rollout]
        if response_tokens is not None:
            self._finished.append(response_tokens)

    def lose(self, engine: int) -> list[int]:
        """The engine is gone: its rollouts, which are first in the queue from here on."""
        lost = sorted(self._engines[engine].rollouts)
        for rollout in lost:
            self._displace(rollout)
            self._open[rollout].context_tokens = 0
        self._queue.extendleft(reversed(lost))
        self._engines[engine].alive = False
        self._undecided = True
        return lost

    def restore(self, engine: int) -> None:
        """The engine is there again, empty."""
        self._engines[engine].alive = True
        self._undecided = True

    def end_step(self) -> None:
        """Take the lengths of the rollouts that finished as the estimate, and decide the gate anew."""
        self.gated, self._undecided = False, True
        if len(self._finished) < ENOUGH_LENGTHS:
            return
        self.lengths, self._finished = Lengths.of(self._finished), []
        for rollout in self._open.values():
            self._expect(rollout)

    @property
    def _living(self) -> list[_Engine]:
        return [engine for engine in self._engines if engine.alive]

    @property
    def _mean_prompt(self) -> float:
        return sum(r.prompt_tokens for r in self._open.values()) / len(self._open)

    def _choose(self, rollout: _Rollout) -> int | None:
        """Of the engines with room the one with the fewest rollouts, then with the fewest of this group."""
        need = self._expected(rollout)
        fitting = [
            (len(engine.rollouts), engine.groups[rollout.group], i)
            for i, engine in enumerate(self._engines)
            if engine.alive and self._fits(engine, need)
        ]
        return min(fitting)[2] if fitting else None

    def _fits(self, engine: _Engine, need: int) -> bool:
        if not self.gated or not engine.rollouts:
            return True
        if engine.waiting:
            return False
        limit = self.config.overbook * engine.kv_tokens + SPARE * self.config.saturation * need
        return engine.reserved_tokens + need <= limit

    def _expected(self, rollout: _Rollout) -> int:
        return max(rollout.prompt_tokens + round(self.lengths.mean), rollout.context_tokens)

    def _expect(self, rollout: _Rollout) -> None:
        """Bring the ledger up to date for a rollout."""
        if rollout.engine is None:
            return
        expected = self._expected(rollout)
        self._engines[rollout.engine].expected_tokens += expected - rollout.expected_tokens
        rollout.expected_tokens = expected

    def _place(self, name: int, engine: int) -> None:
        rollout = self._open[name]
        rollout.engine = engine
        self._engines[engine].rollouts.add(name)
        self._engines[engine].groups[rollout.group] += 1
        self._expect(rollout)

    def _displace(self, name: int) -> None:
        rollout = self._open[name]
        assert rollout.engine is not None
        engine = self._engines[rollout.engine]
        engine.rollouts.remove(name)
        engine.groups[rollout.group] -= 1
        engine.expected_tokens -= rollout.expected_tokens
        rollout.engine, rollout.expected_tokens = None, 0
        if not engine.rollouts:
            engine.groups.clear()
            engine.kv_used_tokens = engine.running = engine.waiting = 0
