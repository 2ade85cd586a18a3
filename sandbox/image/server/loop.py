"""The event loop of a dispatcher: file descriptors, timers, and signals that wake it."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable

Handler = Callable[[int], None]


class Loop:
    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def watch(self, fd: int, handler: Handler, events: int = select.EPOLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._poll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """To be called before `fd` is closed; one that is not watched is as good."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), action))

    def on_child_ended(self, handler: Callable[[], None]) -> None:
        """Call `handler` soon after one or more children have ended."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        def woken(_: int) -> None:
            os.read(wake_read, 4096)
            handler()

        self.watch(wake_read, woken)

    def turn(self, until: float) -> None:
        """Wait for something to happen, `until` that time at most, and handle it."""
        if self._timers:
            until = min(until, self._timers[0][0])
        for fd, events in self._poll.poll(max(0.0, until - time.monotonic())):
            if handler := self._handlers.get(fd):
                handler(events)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
