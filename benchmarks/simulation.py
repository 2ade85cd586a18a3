"""A discrete-event simulation of many vLLM engines under one placement policy.

The policy is real code: an object with the methods of `rl.scheduler.Scheduler`, driven as `rl/fleet.py` drives it.
What an engine does, and every assumption about it:
- A decode step gives each running sequence one token and takes `step_s + kv_s x KV tokens held by running
  sequences + sequence_s x sequences`. Between two events nothing but the contexts changes, so a span of steps
  is computed at once.
- Prefill stalls the engine for `prefill_s` a token that is not cached. (vLLM mixes prefill into decode steps; the
  work is the same.)
- KV is counted in tokens, not blocks. Prompts of a group are not shared.
- Waiting requests are served first come, first served, and start when their whole context fits beside the running ones.
  When the next step doesn't fit, the sequence that started last is preempted to the head of the waiting queue.
- A sequence that leaves (tool call, preemption, end) leaves its KV cached; the cache is evicted in the order of
  leaving, tail first, when running sequences need the room. Whoever comes back reuses what is left of its own.
- A tool call takes `TOOL_S` and adds `TOOL_TOKENS`; the turn comes back at the tail of the same engine's queue.
- An engine's readings, and the contexts at the end of turns, reach the policy without delay.
Invariant: the KV of running sequences never exceeds the capacity, and every rollout ends exactly once.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

TOOL_S = 0.3
TOOL_TOKENS = 150


@dataclass(frozen=True)
class Hardware:
    """Cost of an engine's step. Chosen, not measured: bandwidth-like constants of a 14B model in bf16."""

    name: str
    kv_tokens: int
    step_s: float
    kv_s: float
    sequence_s: float
    prefill_s: float


@dataclass(frozen=True)
class Work:
    """One rollout: tokens that it generates in each turn; a tool call lies between two turns."""

    group: int
    prompt_tokens: int
    turns: tuple[int, ...]

    @property
    def response_tokens(self) -> int:
        return sum(self.turns) + TOOL_TOKENS * (len(self.turns) - 1)

    @property
    def final_tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens


class Placement(Protocol):
    """What the simulation needs of a policy; `rl.scheduler.Scheduler` is one."""

    def submit(self, rollout: int, group: int, prompt_tokens: int) -> None: ...
    def ready(self) -> list[tuple[int, int]]: ...
    def progress(self, rollout: int, context_tokens: int) -> None: ...
    def observe(self, engine: int, kv_used_tokens: int, running: int, waiting: int) -> None: ...
    def finish(self, rollout: int, response_tokens: int | None = None) -> None: ...


@dataclass
class Outcome:
    """What one step of rollouts cost."""

    makespan_s: float
    preemptions: int
    prefill_tokens: int
    recomputed_tokens: int  # prefilled although they had been in the cache before
    generated_tokens: int
    idle_share: float  # engine time without a running sequence
    kv_mean: float  # share of KV that running sequences held, over engine time
    concurrency: float  # running sequences an engine, mean over its busy time


@dataclass
class Engine:
    """One engine; `now_s` is the time at its current step boundary."""

    hardware: Hardware
    now_s: float = 0.0
    busy_s: float = 0.0
    kv: int = 0  # held by running sequences
    steps: int = 0
    running: dict[int, int] = field(
        default_factory=dict
    )  # rollout -> context - steps; ordered by start
    ends: list[tuple[int, int]] = field(
        default_factory=list
    )  # heap: (step at which the turn ends, rollout)
    turn_ends: dict[int, int] = field(default_factory=dict)  # rollout -> step, while it runs
    waiting: deque[tuple[int, int, int]] = field(
        default_factory=deque
    )  # (rollout, context, left of the turn)
    cached: OrderedDict[int, int] = field(default_factory=OrderedDict)  # oldest first
    cached_tokens: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    kv_seconds: float = 0.0
    sequence_seconds: float = 0.0
    version: int = 0

    def span_s(self, steps: int) -> float:
        """Time of the next `steps` steps, if nobody comes or goes."""
        n = len(self.running)
        first = (
            self.hardware.step_s + self.hardware.sequence_s * n + self.hardware.kv_s * (self.kv + n)
        )
        return steps * first + self.hardware.kv_s * n * steps * (steps - 1) / 2

    def next_steps(self) -> int | None:
        """Steps until a turn ends or KV runs out; None when nothing runs."""
        if not self.running:
            return None
        while (
            self.ends[0][1] not in self.running
            or self.ends[0][0] != self.turn_ends[self.ends[0][1]]
        ):
            heapq.heappop(self.ends)  # of a sequence that was preempted
        return min(
            self.ends[0][0] - self.steps, (self.hardware.kv_tokens - self.kv) // len(self.running)
        )

    def run(self, steps: int) -> None:
        if steps == 0:
            return
        n, seconds = len(self.running), self.span_s(steps)
        self.kv_seconds += seconds * (self.kv + n * steps / 2)
        self.sequence_seconds += seconds * n
        self.busy_s += seconds
        self.now_s += seconds
        self.steps += steps
        self.kv += n * steps
        self._evict()

    def run_until(self, time_s: float) -> None:
        """Run to the first step boundary at or after `time_s`."""
        left = time_s - self.now_s
        if left <= 0:
            return
        if not self.running:
            self.now_s = time_s
            return
        slope = self.hardware.kv_s * len(self.running) / 2
        first = self.span_s(1) - slope
        steps = math.ceil(
            (math.sqrt(first * first + 4 * slope * left) - first) / (2 * slope) - 1e-9
        )
        limit = self.next_steps()
        self.run(steps if limit is None else min(steps, limit))

    def leave(self, rollout: int, keep: bool) -> int:
        """Take a running rollout out; its KV stays cached as long as there is room. Returns its context."""
        context = self.running.pop(rollout) + self.steps
        self.kv -= context
        self.cached[rollout if keep else ~rollout] = context
        self.cached_tokens += context
        return context

    def preempt(self, known: list[int]) -> None:
        """Make room for one step; notes in `known` what had been in the cache."""
        while self.hardware.kv_tokens - self.kv < len(self.running):
            rollout = next(reversed(self.running))
            left = self.turn_ends[rollout] - self.steps
            known[rollout] = self.leave(rollout, keep=True)
            self.waiting.appendleft((rollout, known[rollout], left))
            self.preemptions += 1
        self._evict()

    def start_waiting(self, known: Sequence[int]) -> None:
        """Start waiting requests in order while they fit; `known[rollout]` tokens were in the cache before."""
        while self.waiting:
            rollout, context, left = self.waiting[0]
            if self.running and self.kv + context + len(self.running) + 1 > self.hardware.kv_tokens:
                return
            self.waiting.popleft()
            hit = self.cached.pop(rollout, 0)
            self.cached_tokens -= hit
            self.prefill_tokens += context - hit
            self.recomputed_tokens += max(0, known[rollout] - hit)
            stall = (context - hit) * self.hardware.prefill_s
            self.kv_seconds += stall * self.kv
            self.sequence_seconds += stall * len(self.running)
            self.busy_s += stall
            self.now_s += stall
            self.kv += context
            self.running[rollout] = context - self.steps
            self.turn_ends[rollout] = self.steps + left
            heapq.heappush(self.ends, (self.steps + left, rollout))
            self._evict()

    def _evict(self) -> None:
        excess = self.kv + self.cached_tokens - self.hardware.kv_tokens
        while excess > 0:
            rollout, tokens = next(iter(self.cached.items()))
            gone = min(excess, tokens)
            if gone == tokens:
                del self.cached[rollout]
            else:
                self.cached[rollout] = tokens - gone
            self.cached_tokens -= gone
            excess -= gone


class Simulation:
    """Runs all rollouts of one step under a policy."""

    def __init__(
        self, hardware: Hardware, engines: int, work: Sequence[Work], policy: Placement
    ) -> None:
        self.work, self.policy = work, policy
        self.engines = [Engine(hardware) for _ in range(engines)]
        self.where = [-1] * len(work)
        self.turn = [0] * len(work)
        self.known = [0] * len(work)  # tokens that were in an engine's cache at some time
        self.ended = 0
        self.events: list[
            tuple[float, int, int, int]
        ] = []  # (time, engine, version, returning rollout or -1)

    def run(self) -> Outcome:
        for rollout, work in enumerate(self.work):
            self.policy.submit(rollout, work.group, work.prompt_tokens)
        self._place(0.0)
        while self.events:
            time_s, index, version, rollout = heapq.heappop(self.events)
            if rollout >= 0:
                self._arrive(index, rollout, time_s)
            elif version == self.engines[index].version:
                self._end_of_span(index)
        if self.ended != len(self.work):
            raise AssertionError(f"{self.ended} of {len(self.work)} rollouts ended")
        return self._outcome()

    def _end_of_span(self, index: int) -> None:
        engine = self.engines[index]
        engine.run(engine.next_steps() or 0)
        finished = False
        while engine.ends and engine.ends[0][0] == engine.steps:
            _, rollout = heapq.heappop(engine.ends)
            if rollout in engine.running and engine.turn_ends[rollout] == engine.steps:
                finished |= self._end_turn(index, rollout)
        if engine.hardware.kv_tokens - engine.kv < len(engine.running):
            engine.preempt(self.known)
        else:
            engine.start_waiting(self.known)
        self._schedule(index)
        if finished:
            self._place(engine.now_s)

    def _end_turn(self, index: int, rollout: int) -> bool:
        engine, work = self.engines[index], self.work[rollout]
        self.turn[rollout] += 1
        finished = self.turn[rollout] == len(work.turns)
        context = engine.leave(rollout, keep=not finished)
        self.known[rollout] = context
        if not finished:
            self.policy.progress(rollout, context)
            heapq.heappush(self.events, (engine.now_s + TOOL_S, index, 0, rollout))
            return False
        self.ended += 1
        self.policy.finish(rollout, work.response_tokens)
        return True

    def _arrive(self, index: int, rollout: int, time_s: float) -> None:
        """A request comes to an engine: a new rollout, or the next turn of one."""
        engine, work, turn = self.engines[index], self.work[rollout], self.turn[rollout]
        engine.run_until(time_s)
        context = work.prompt_tokens + sum(work.turns[:turn]) + TOOL_TOKENS * turn
        engine.waiting.append((rollout, context, work.turns[turn]))
        if engine.hardware.kv_tokens - engine.kv >= len(engine.running):
            engine.start_waiting(self.known)
        self._schedule(index)

    def _place(self, time_s: float) -> None:
        for rollout, index in self.policy.ready():
            if self.where[rollout] != -1:
                raise AssertionError(f"rollout {rollout} was placed twice")
            self.where[rollout] = index
            self._arrive(index, rollout, time_s)

    def _schedule(self, index: int) -> None:
        engine = self.engines[index]
        engine.version += 1
        self.policy.observe(index, engine.kv, len(engine.running), len(engine.waiting))
        steps = engine.next_steps()
        if steps is not None:
            heapq.heappush(
                self.events, (engine.now_s + engine.span_s(steps), index, engine.version, -1)
            )

    def _outcome(self) -> Outcome:
        makespan = max(engine.now_s for engine in self.engines)
        total = makespan * len(self.engines)
        busy = sum(engine.busy_s for engine in self.engines)
        kv_tokens = self.engines[0].hardware.kv_tokens
        return Outcome(
            makespan_s=makespan,
            preemptions=sum(engine.preemptions for engine in self.engines),
            prefill_tokens=sum(engine.prefill_tokens for engine in self.engines),
            recomputed_tokens=sum(engine.recomputed_tokens for engine in self.engines),
            generated_tokens=sum(sum(work.turns) for work in self.work),
            idle_share=1 - busy / total,
            kv_mean=sum(engine.kv_seconds for engine in self.engines) / (kv_tokens * total),
            concurrency=sum(engine.sequence_seconds for engine in self.engines) / busy,
        )


def lower_bound_s(hardware: Hardware, engines: int, work: Sequence[Work]) -> float:
    """No placement is faster: every token is decoded at its context, in steps that hold at most the whole KV,
    and prompts and tool results are prefilled once; nor is any faster than the longest rollout alone."""
    tokens = area = prefill = 0.0
    chain = 0.0
    for rollout in work:
        context, own = rollout.prompt_tokens, 0.0
        prefill += rollout.prompt_tokens + TOOL_TOKENS * (len(rollout.turns) - 1)
        for turn, n in enumerate(rollout.turns):
            context += TOOL_TOKENS * (turn > 0)
            held = n * context + n * (n + 1) / 2
            area, tokens = area + held, tokens + n
            own += n * (hardware.step_s + hardware.sequence_s) + hardware.kv_s * held
            context += n
        chain = max(chain, own + TOOL_S * (len(rollout.turns) - 1))
    decode = (
        area * hardware.kv_s
        + tokens * hardware.sequence_s
        + area / hardware.kv_tokens * hardware.step_s
    )
    return max(chain, (decode + prefill * hardware.prefill_s) / engines)
