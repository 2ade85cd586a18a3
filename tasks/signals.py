"""SIGTERM in a stage child: polite first, firm after a few seconds.

The first SIGTERM only sets `stopping`, which a body reads between steps. A body that does not end within
`GRACE_S` is broken off by `Stop`, raised in the main thread; the launcher kills what is left after that.
"""

from __future__ import annotations

import signal
from types import FrameType

GRACE_S = 3.0


class Stop(BaseException):
    """The stage ends unfinished. No `Exception`: a body's own handlers must not swallow it."""


class StopSignals:
    """Handlers of SIGTERM and SIGINT of this process."""

    def __init__(self) -> None:
        self.stopping = False
        self.install()

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) != self._first:
                signal.signal(number, self._first)

    def stop(self) -> None:
        self.settle()
        raise Stop

    def settle(self) -> None:
        """The body has ended: nothing is broken off any more."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _first(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            return
        self.stopping = True
        signal.signal(signal.SIGALRM, self._second)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def _second(self, number: int, frame: FrameType | None) -> None:
        raise Stop
