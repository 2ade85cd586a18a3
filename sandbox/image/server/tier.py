"""A tier: one zygote process and the link to it, started again with growing pauses when it dies."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from .call import Exit

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

MOST_FAILURES = 6  # in a row, without ever becoming ready
FIRST_PAUSE_S = 0.1
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


class Tier:
    def __init__(self, name: str, dispatcher: Dispatcher) -> None:
        self.name = name
        self.ready = False
        self.missing: list[str] = []
        self._dispatcher = dispatcher
        self._failures = 0
        self._slots: set[int] = set()
        self._spawn()

    def _spawn(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-s", "-m", "server.zygote"]
        self._process = subprocess.Popen(
            [*command, self.name, str(theirs.fileno()), json.dumps(self._dispatcher.walls)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        theirs.close()
        self._dispatcher.watch(self._link.fileno(), lambda _: self._on_report())

    def fork(self, request: dict[str, Any], fds: list[int]) -> None:
        """Have the zygote fork a child for `request`, with code, stdin, stdout and stderr as `fds`."""
        self._slots.add(request["slot"])
        try:
            socket.send_fds(self._link, [json.dumps(request).encode()], fds)
        except OSError as error:
            # Its end of the link is gone; the loop sees that next and fails the slots on record.
            print(f"zygote {self.name}: {error}", file=sys.stderr, flush=True)

    def _on_report(self) -> None:
        try:
            data = self._link.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._died()
            return
        report = json.loads(data)
        if "ready" in report:
            self.ready = True
            self._failures = 0
            self.missing = report["missing"]
            self._dispatcher.announce()
        elif "pid" in report:
            self._dispatcher.on_forked(report["slot"], report["pid"])
        elif "failed" in report:
            print(f"zygote {self.name}: {report['failed']}", file=sys.stderr, flush=True)
            self._ended(report["slot"], None)
        else:
            self._ended(report["slot"], Exit(report["wait"], report["cpu_s"], report["max_rss_mb"]))

    def _ended(self, slot: int, end: Exit | None) -> None:
        self._slots.discard(slot)
        self._dispatcher.on_exit(slot, end)

    def _died(self) -> None:
        self.ready = False
        self._dispatcher.unwatch(self._link.fileno())
        self._link.close()
        self._process.kill()
        code = self._process.wait()
        self._failures += 1
        print(f"zygote {self.name} ended with {code}", file=sys.stderr, flush=True)
        if self._failures >= MOST_FAILURES:
            sys.exit(f"zygote {self.name} failed {self._failures} times in a row")
        for slot in list(self._slots):
            self._ended(slot, None)
        self._dispatcher.later(FIRST_PAUSE_S * 2**self._failures, self._spawn)
