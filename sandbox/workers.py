"""The inside of the box as the gateway sees it: its dispatchers, one connection each.

Each dispatcher serves its own socket and its own slots. Invariants: a call sent to one comes back exactly once,
as its reply or, when the connection is lost, as None. Inside a box that runs, a lost dispatcher is started again
by the box itself, and connected to again here; a box that has ended, or whose dispatcher does not come back
within `start_timeout_s`, is replaced, with growing pauses.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.box import Box, BoxError, Place
from sandbox.config import SandboxConfig
from sandbox.image.server import wire

BEAT_S = 1.0
SILENT_S = 12.0  # a dispatcher that has not answered a heartbeat for so long is let go (the box itself kills it)
CONNECT_PAUSE_S = 0.02
LOOK_EVERY = 25  # attempts to connect between looks whether the box still runs
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 10.0
HEALTHY_S = 30.0  # a box that lived this long resets the backoff


@dataclass(eq=False)
class Worker:
    """One dispatcher."""

    index: int
    slots: int
    writer: asyncio.StreamWriter | None = None  # None until it is ready
    running: set[int] = field(default_factory=set)
    last_answer: float = 0.0
    zygotes: dict[str, dict[str, int]] = field(default_factory=dict)  # as it reported last

    @property
    def room(self) -> int:
        return self.slots - len(self.running) if self.writer is not None else 0


class Workers:
    """`on_reply(number, reply)` is called for each call that was sent (reply None: lost with its worker),
    `on_room()` whenever a worker may take more."""

    def __init__(
        self,
        config: SandboxConfig,
        box: Box,
        place: Place,
        on_reply: Callable[[int, wire.Message | None], None],
        on_room: Callable[[], None],
    ) -> None:
        self._config = config
        self._box = box
        self._place = place
        self._on_reply = on_reply
        self._on_room = on_room
        self._workers = [Worker(i, slots) for i, slots in enumerate(config.slots_of_workers)]
        self._where: dict[int, Worker] = {}
        self.missing: list[str] = []
        self.restarts = 0
        """Boxes that were replaced."""
        self.lost_workers = 0
        self.first = asyncio.Event()
        """Set once calls can run."""

    @property
    def ready(self) -> int:
        """Workers that take calls."""
        return sum(worker.writer is not None for worker in self._workers)

    @property
    def zygotes_mb(self) -> dict[str, int]:
        """Memory of the fork servers of all workers, by tier."""
        found: Counter[str] = Counter()
        for worker in self._workers:
            for name, report in worker.zygotes.items():
                found[name] += report["memory_mb"]
        return dict(found)

    @property
    def running(self) -> int:
        return len(self._where)

    @property
    def room(self) -> int:
        """Calls that could start at once."""
        return sum(worker.room for worker in self._workers)

    @property
    def count(self) -> int:
        return len(self._workers)

    def room_of(self, index: int) -> int:
        """Calls that could start at once on worker number `index`; 0 while it is not ready."""
        return self._workers[index].room

    def drop(self, index: int, reason: str) -> None:
        """Replace worker number `index`, which does not do its work; its calls come back as lost."""
        worker = self._workers[index]
        if worker.writer is not None:
            _say(f"worker {index} is replaced: {reason}")
            worker.writer.write(wire.encode({"op": "quit"}))
            worker.writer.transport.abort()

    def send(self, number: int, request: wire.Message) -> None:
        """Run `request` under `number` on the worker with the most room; there must be some."""
        self.send_to(max(self._workers, key=lambda one: one.room).index, number, request)

    def send_to(self, index: int, number: int, request: wire.Message) -> None:
        """As `send`, on worker number `index`, which must have room."""
        worker = self._workers[index]
        assert worker.writer is not None
        worker.running.add(number)
        self._where[number] = worker
        worker.writer.write(wire.encode({**request, "id": number}))

    def cancel(self, number: int) -> None:
        worker = self._where.get(number)
        if worker is not None and worker.writer is not None:
            worker.writer.write(wire.encode({"op": "cancel", "id": number}))

    async def keep(self) -> None:
        """Start a box, live with it until it dies, start the next one. BoxError if the first does not start."""
        backoff_s = FIRST_BACKOFF_S
        while True:
            started_at = time.monotonic()
            try:
                await asyncio.to_thread(self._box.start)
                await self._live_with_box()
            except (
                BoxError,
                OSError,
                ValueError,
                wire.WireError,
                asyncio.IncompleteReadError,
            ) as error:
                if not self.first.is_set():
                    raise (
                        error if isinstance(error, BoxError) else self._start_error(error)
                    ) from error
                _say(f"{error}; its log ends:\n{self._place.log_tail()}")
            await asyncio.to_thread(self._box.stop)
            lived_s = time.monotonic() - started_at
            backoff_s = (
                FIRST_BACKOFF_S if lived_s > HEALTHY_S else min(LONGEST_BACKOFF_S, backoff_s * 2)
            )
            self.restarts += 1
            await asyncio.sleep(backoff_s)

    def _start_error(self, error: Exception) -> BoxError:
        return BoxError(
            f"the sandbox did not start: {error}; its log ends:\n{self._place.log_tail()}"
        )

    async def _live_with_box(self) -> None:
        """Raises when the box has to be replaced."""
        living = [asyncio.create_task(self._live_with(worker)) for worker in self._workers]
        try:
            await asyncio.gather(*living)
        finally:
            for task in living:
                task.cancel()
            await asyncio.gather(*living, return_exceptions=True)

    async def _live_with(self, worker: Worker) -> None:
        """Connect to `worker`, and again whenever it is lost, for as long as the box lives."""
        while True:
            start_by = time.monotonic() + self._config.start_timeout_s
            reader, writer = await self._connect(worker, start_by)
            try:
                await self._listen(worker, reader, writer, start_by)
            except TimeoutError:
                raise BoxError(
                    f"worker {worker.index} was not ready within {self._config.start_timeout_s:g} s"
                ) from None
            except (OSError, ValueError, wire.WireError, asyncio.IncompleteReadError) as error:
                reason = error
            if not await asyncio.to_thread(self._box.running):
                raise BoxError(f"the {self._box.isolation} sandbox ended: {reason}")
            _say(f"worker {worker.index} was lost: {reason}")
            self.lost_workers += 1

    async def _listen(
        self,
        worker: Worker,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        start_by: float,
    ) -> None:
        """One connection to `worker`, until it is lost. TimeoutError if it is not ready by then."""
        beating = asyncio.create_task(self._beat(worker, writer))
        try:
            async with asyncio.timeout(start_by - time.monotonic()) as start:
                while True:
                    header = await reader.readexactly(wire.HEADER.size)
                    message = wire.decode(await reader.readexactly(wire.body_length(header)))
                    self._on_message(worker, message, writer)
                    if worker.writer is not None and start.when() is not None:
                        start.reschedule(None)
        finally:
            beating.cancel()
            writer.close()
            self._lose(worker)

    async def _connect(
        self, worker: Worker, start_by: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for attempt in itertools.count(1):
            try:
                return await asyncio.open_unix_connection(str(self._place.socket(worker.index)))
            except OSError:
                if time.monotonic() > start_by:
                    raise
            if attempt % LOOK_EVERY == 0 and not await asyncio.to_thread(self._box.running):
                raise BoxError(f"the {self._box.isolation} sandbox ended while it started")
            await asyncio.sleep(CONNECT_PAUSE_S)
        raise AssertionError("unreachable")

    async def _beat(self, worker: Worker, writer: asyncio.StreamWriter) -> None:
        """Renew the lease; drop a dispatcher that no longer answers."""
        worker.last_answer = time.monotonic()
        while time.monotonic() - worker.last_answer < SILENT_S:
            writer.write(wire.encode({"op": "beat"}))
            await asyncio.sleep(BEAT_S)
        _say(f"worker {worker.index} gave no sign of life for {SILENT_S:g} s")
        writer.transport.abort()

    def _on_message(
        self, worker: Worker, message: wire.Message, writer: asyncio.StreamWriter
    ) -> None:
        worker.last_answer = time.monotonic()
        if message.get("op") == "ready":
            self._on_ready(worker, message["missing"], writer)
        elif message.get("op") == "beat":
            worker.zygotes = message.get("zygotes", {})
        elif "status" in message:
            self._forget(worker, message["id"])
            self._on_reply(message["id"], message)
            self._on_room()

    def _on_ready(self, worker: Worker, missing: list[str], writer: asyncio.StreamWriter) -> None:
        if missing and missing != self.missing:
            self.missing = missing
            _say(f"programs cannot import {', '.join(missing)}")
        worker.writer = writer
        self.first.set()
        self._on_room()

    def _forget(self, worker: Worker, number: int) -> None:
        worker.running.discard(number)
        del self._where[number]

    def _lose(self, worker: Worker) -> None:
        worker.writer = None
        for number in sorted(worker.running):
            self._forget(worker, number)
            self._on_reply(number, None)


def _say(text: str) -> None:
    print(f"sandbox: {text}", file=sys.stderr, flush=True)
