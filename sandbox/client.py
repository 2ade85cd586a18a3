"""Client of the sandbox: `outcome = await client.run(code, stdin, limits)`.

Calls are pure (no state between them), hence safe to repeat: an infrastructure status or a lost connection
is retried until `deadline_s` has passed, and only then returned. Among several gateways a call goes to the
least loaded one, those on this machine first; one that is dead or overloaded is left alone for a while.
Each event loop gets connections of its own, so one client may be used from any of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sandbox.config import Limits
from sandbox.image.server import wire
from sandbox.links import Endpoint, Link, connect
from sandbox.outcome import Outcome, Status
from sandbox.request import MAX_INPUT

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
LONGEST_REST_S = 30.0  # whatever an overloaded gateway estimates
REPEATS_OF_FAILED = (
    3  # the gateway tried such a call several times already: it may break what runs it
)
MIN_TRY_S = 0.001
TRIP = 2.0  # another machine's gateway is taken once ours has so many calls more a slot outstanding


class SandboxClient:
    """Runs programs through the gateway(s) at `endpoints`: paths of unix sockets, or http://HOST:PORT."""

    def __init__(
        self, endpoints: str | Endpoint | Sequence[str | Endpoint], deadline_s: float = 300.0
    ) -> None:
        self.deadline_s = deadline_s
        self._endpoints: list[Endpoint] = []
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        several = [endpoints] if isinstance(endpoints, str | Endpoint) else endpoints
        self.set_endpoints([Endpoint(one) if isinstance(one, str) else one for one in several])

    def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Where the gateways are from now on; calls on those that stay go on."""
        if not endpoints:
            raise ValueError("expected at least one endpoint of a sandbox, got none")
        self._endpoints = list(endpoints)

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        mode: Literal["script", "cell"] = "script",
        history: Sequence[str] = (),
    ) -> Outcome:
        """Run `code` as a program of its own, or as a cell after those of `history`; what `limits` leave
        out is as the sandbox was configured."""
        size = len(code) + len(stdin) + sum(map(len, history))
        if size > MAX_INPUT:
            raise ValueError(
                f"code and stdin have {size} characters together with their history, "
                f"at most {MAX_INPUT} are allowed"
            )
        request: wire.Message = {"op": "run", "code": code, "stdin": stdin}
        if mode != "script":
            request |= {"mode": mode, "history": list(history)}
        if limits is not None:
            request["limits"] = limits.model_dump(exclude_unset=True)
        return await self._run(request, time.monotonic() + self.deadline_s)

    async def health(self) -> dict[str, Any]:
        """What the first gateway says of itself: isolation, calls by status, running, queued."""
        return await self._pool().nodes[0].link.request({"op": "health"})

    async def close(self) -> None:
        """Close this event loop's connections; calls still outstanding come back as cancelled."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = _Pool()
        self._pools[loop].follow(self._endpoints)
        return self._pools[loop]

    async def _run(self, request: wire.Message, give_up_at: float) -> Outcome:
        attempts = failures = 0
        failed_at: set[Endpoint] = set()
        outcome: Outcome | None = None
        while True:
            pause_s = max(self._pool().rest_s(), _backoff_s(failures) if failures else 0.0)
            if time.monotonic() + pause_s > give_up_at:
                if outcome is not None:
                    return outcome
                pause_s = 0.0  # one try, whatever the deadline
            await asyncio.sleep(pause_s)
            node = self._pool().choose(failed_at)
            try:
                outcome = await self._attempt(node, request, give_up_at)
                answered = True
            except OSError as error:
                text = f"sandbox at {node.endpoint.address}: {error}"
                outcome = Outcome(Status.SANDBOX_ERROR, stderr=text)
                answered = False
            attempts += outcome.attempt
            outcome = replace(outcome, attempt=attempts)
            status = outcome.status
            # Cancelled: by this client, nobody else cancels its calls.
            if not status.infrastructure or status is Status.CANCELLED:
                return outcome
            if answered and status is not Status.OVERLOADED:
                failures += 1
                failed_at.add(node.endpoint)
                if failures == REPEATS_OF_FAILED:
                    return outcome

    async def _attempt(self, node: _Node, request: wire.Message, give_up_at: float) -> Outcome:
        """One try at `node`; OSError if the connection failed."""
        node.outstanding += 1
        try:
            async with asyncio.timeout(max(MIN_TRY_S, give_up_at - time.monotonic())) as patience:
                reply = await node.link.request(request)
        except OSError as error:
            if patience.expired():
                text = f"no answer within {self.deadline_s:g} s"
                return Outcome(Status.SANDBOX_ERROR, stderr=text)
            node.rest_after_failure()
            raise error
        finally:
            node.outstanding -= 1
        outcome = Outcome.from_reply(reply)
        node.failures = 0
        if outcome.status is Status.OVERLOADED:
            node.rest(min(LONGEST_REST_S, outcome.retry_after_s or LONGEST_PAUSE_S))
        return outcome


@dataclass(eq=False)
class _Node:
    """One gateway as seen from one event loop."""

    endpoint: Endpoint
    link: Link
    outstanding: int = 0
    failures: int = 0  # in a row; many calls that fail together are one
    rest_until: float = 0.0

    @property
    def load(self) -> float:
        """Calls a slot that are ahead of a new one, as far as this client knows."""
        return self.outstanding / self.endpoint.slots + (0.0 if self.endpoint.near else TRIP)

    def rest(self, duration_s: float) -> None:
        self.rest_until = max(self.rest_until, time.monotonic() + duration_s)

    def rest_after_failure(self) -> None:
        if self.rest_until <= time.monotonic():
            self.failures += 1
            self.rest(_backoff_s(self.failures))


class _Pool:
    """The gateways in one event loop."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self._left: list[_Node] = []
        self._following: list[Endpoint] = []

    def follow(self, endpoints: list[Endpoint]) -> None:
        if endpoints is self._following:
            return
        self._following = endpoints
        known = {node.endpoint: node for node in self.nodes}
        self.nodes = [
            known.pop(one) if one in known else _Node(one, connect(one)) for one in endpoints
        ]
        self._left += known.values()  # their calls may still come back

    def rest_s(self) -> float:
        """Until some gateway may be asked, with jitter: not all who wait should come at once."""
        rest_s = min(node.rest_until for node in self.nodes) - time.monotonic()
        return rest_s * random.uniform(1.0, 1.5) if rest_s > 0 else 0.0

    def choose(self, failed_at: set[Endpoint]) -> _Node:
        """The least loaded gateway among those awake, rather not one that failed this call."""
        now = time.monotonic()
        return min(
            self.nodes,
            key=lambda node: (
                max(0.0, node.rest_until - now),
                node.endpoint in failed_at,
                node.load,
            ),
        )

    async def close(self) -> None:
        await asyncio.gather(*(node.link.close() for node in [*self.nodes, *self._left]))


def _backoff_s(failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failures) * random.uniform(0.5, 1.0)
