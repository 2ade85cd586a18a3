"""What is compared: a backend runs programs and says what it has cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from benchmarks.sandboxes.programs import Answer, Program

OnAnswer = Callable[[int, Answer], None]


class Backend(Protocol):
    """Started and stopped by the benchmark. Whatever happens, `stop` ends all that `start` began."""

    name: str
    """Of its column and in the JSON."""
    width: int
    """Most programs of one request."""

    async def start(self) -> None: ...

    async def run(self, batch: list[Program], on_answer: OnAnswer) -> None:
        """One request: `on_answer(index, answer)` for each program as soon as it is known. Cancelling
        it gives up what has not been answered."""

    def cpu_s(self) -> float:
        """CPU-seconds since some fixed moment: of all its processes, the ended ones included."""

    async def reset(self) -> None:
        """Be idle and empty again after a request was given up."""

    async def stop(self) -> None: ...
