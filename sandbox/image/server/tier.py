"""A tier: its zygote, started again with growing pauses when it dies, and replaced when it has grown old.

Calls do not depend on the zygote that forked them: their parent is the dispatcher. Only a call whose pid has not
been told yet is lost with its zygote.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from . import tree
from .order import Order
from .zygote import PID

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

MOST_FAILURES = 6  # in a row, without ever becoming ready
FIRST_PAUSE_S = 0.1
MOST_GROWTH = 32 << 20  # bytes
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # set order must not depend on which zygote served the call
    # A fork copies no threads: a BLAS that had started some would wait for them for ever.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # each further one reserves address space, which RLIMIT_AS counts
}


_numbers = itertools.count(1)


class Zygote:
    """One process of a tier."""

    def __init__(self, name: str, box_root: str, walls: dict[str, Any]) -> None:
        self.link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pids, pids = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(pids, True)
        self.mark = f"{name}-{next(_numbers)}"
        command = [sys.executable, "-s", "-m", "server.zygote", name]
        self.process = subprocess.Popen(
            [*command, str(link.fileno()), str(pids), box_root, json.dumps(walls), self.mark],
            pass_fds=[link.fileno(), pids],
            stdin=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        link.close()
        os.close(pids)
        self.forking: set[int] = set()  # slots whose pid has not been told yet
        self.forks = 0
        self.memory_at_first = 0
        self.memory = 0

    def told(self) -> list[tuple[int, int]]:
        """Slots and the pids of their calls, as far as they have been told since the last time."""
        try:
            data = os.read(self.pids, 1 << 12)
        except BlockingIOError:
            return []
        found = list(PID.iter_unpack(data))
        self.forking.difference_update(slot for slot, _ in found)
        return found

    def look(self) -> None:
        self.memory = tree.own_memory(self.process.pid)
        self.memory_at_first = self.memory_at_first or self.memory


class Tier:
    def __init__(self, name: str, dispatcher: Dispatcher) -> None:
        self.name = name
        self.missing: list[str] = []
        self.zygote: Zygote | None = None  # the one that forks
        self._next: Zygote | None = None  # on its way
        self._retired: list[Zygote] = []  # have their last calls to fork
        self._dispatcher = dispatcher
        self._failures = 0

    @property
    def ready(self) -> bool:
        return self.zygote is not None

    def fork(self, order: Order, fds: list[int]) -> None:
        """Have the zygote fork a child for `order`, with code, stdin, stdout and stderr as `fds`."""
        zygote = self.zygote
        assert zygote is not None
        zygote.forks += 1
        zygote.forking.add(order.slot)
        try:
            socket.send_fds(zygote.link, [order.pack()], fds)
        except OSError as error:
            # Its end of the link is gone; the loop sees that next and fails the calls on record.
            print(f"zygote {self.name}: {error}", file=sys.stderr, flush=True)

    def read_pids(self) -> bool:
        """Hand on the pids of calls that were forked; is one still to come?"""
        telling = [one for one in (self.zygote, *self._retired) if one is not None and one.forking]
        for zygote in telling:
            for slot, pid in zygote.told():
                self._dispatcher.on_forked(slot, pid)
        return any(zygote.forking for zygote in telling)

    def look(self) -> None:
        """From time to time: replace a zygote that has grown old by one that is ready."""
        if self.zygote is None:
            return
        self.zygote.look()
        grown = self.zygote.memory - self.zygote.memory_at_first
        old = self.zygote.forks > self._dispatcher.recycle_after or grown > MOST_GROWTH
        if old and self._next is None:
            self.start()

    def replace(self) -> None:
        """The zygote does not work: kill it. Its link ends then, and all the rest follows from that."""
        if self.zygote is not None:
            self.zygote.process.kill()

    @property
    def pids(self) -> list[int]:
        """Of its zygotes."""
        living = (self.zygote, self._next, *self._retired)
        return [one.process.pid for one in living if one is not None]

    @property
    def memory(self) -> int:
        """Bytes that every child inherits."""
        return 0 if self.zygote is None else self.zygote.memory

    def report(self) -> dict[str, int]:
        forks = 0 if self.zygote is None else self.zygote.forks
        return {"memory_mb": self.memory >> 20, "forks": forks}

    def start(self) -> None:
        started = self._next = Zygote(self.name, self._dispatcher.box_root, self._dispatcher.walls)
        self._dispatcher.loop.watch(started.link.fileno(), lambda _: self._on_report(started))

    def _on_report(self, zygote: Zygote) -> None:
        try:
            data = zygote.link.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._died(zygote)
            return
        report = json.loads(data)
        if "ready" in report:
            self._failures = 0
            self.missing = report["missing"]
            if self.zygote is not None:
                self._retired.append(self.zygote)
                self.zygote.link.shutdown(socket.SHUT_WR)  # it ends once it has read the rest
            self.zygote, self._next = zygote, None
            zygote.look()
            self._dispatcher.on_tier_ready()
            return
        print(f"zygote {self.name}: {report['failed']}", file=sys.stderr, flush=True)
        zygote.forking.discard(report["slot"])
        self._dispatcher.on_lost(report["slot"])

    def _died(self, zygote: Zygote) -> None:
        self._end(zygote)
        if zygote in self._retired:
            self._retired.remove(zygote)
            return
        if zygote is self.zygote:
            self.zygote = None
        else:
            self._next = None
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            sys.exit(f"zygote {self.name} failed {self._failures} times in a row")
        if self._next is None:
            self._dispatcher.loop.later(FIRST_PAUSE_S * 2**self._failures, self._restart)

    def _restart(self) -> None:
        if self._next is None:
            self.start()

    def _end(self, zygote: Zygote) -> None:
        """Let go of a zygote; the calls that it may not have forked are lost."""
        self._dispatcher.loop.unwatch(zygote.link.fileno())
        zygote.process.kill()
        code = zygote.process.wait()
        print(f"zygote {self.name} ended with {code}", file=sys.stderr, flush=True)
        for slot, pid in zygote.told():
            self._dispatcher.on_forked(slot, pid)
        for pid in self._dispatcher.unknown_children():
            if tree.real_uid(pid) == os.getuid() and zygote.mark.encode() in tree.command(pid):
                os.kill(pid, signal.SIGKILL)  # forked, but not told
        for slot in list(zygote.forking):
            self._dispatcher.on_lost(slot)
        zygote.link.close()
        os.close(zygote.pids)
