"""The first process of the sandbox: holds the lease, keeps the dispatchers alive, ends everything by ending.

The owner outside sends heartbeats to the dispatchers, which pass each on as a byte in a pipe. When none has come
for LEASE_S this process exits; it is PID 1 of its namespace, so the kernel then kills all the rest. Nothing that
the owner did or failed to do can leave a sandbox behind. A dispatcher that ends, or gives no sign of life for
SILENT_S, is started again alone, with growing pauses; one that never works ends the sandbox.

Settings (JSON, first argument): log, sockets (a pattern), box_root, uid_base (null: calls keep the service's
uid), slots (of each dispatcher), recycle_after (calls of a zygote), walls (see walls.py).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

from . import linux, strays

LEASE_S = 8.0
SILENT_S = 8.0
LOOK_S = 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 3.0
MOST_FAILURES = 6  # in a row, each within HEALTHY_S
HEALTHY_S = 20.0
BEAT, ALIVE = b"b", b"a"  # what dispatchers write: the owner's heartbeat, and their own


class Keeper:
    """One dispatcher: running, or to be started at `start_at`."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.signs, self._signs_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._settings = settings
        self._failures = 0
        self._started_at = self._seen_at = 0.0
        self._start_at = 0.0

    def look(self) -> None:
        """Start it if it is due, kill it if it has been silent for too long."""
        now = time.monotonic()
        if self.pid is None and now >= self._start_at:
            self._start(now)
        elif self.pid is not None and now - self._seen_at > SILENT_S:
            say(f"{self.name} gave no sign of life for {SILENT_S:g} s, it is killed")
            os.kill(self.pid, signal.SIGKILL)
            self._seen_at = now

    def _start(self, now: float) -> None:
        self._started_at = self._seen_at = now
        command = [sys.executable, "-s", "-m", "server.dispatcher", json.dumps(self._settings)]
        self._process = subprocess.Popen([*command, str(self._signs_in)], pass_fds=[self._signs_in])
        self.pid = self._process.pid

    def beaten(self) -> bool:
        """Read its signs of life; was there a heartbeat of the owner among them?"""
        data = os.read(self.signs, 4096)
        self._seen_at = time.monotonic()
        return BEAT in data

    def ended(self, status: int) -> None:
        now = time.monotonic()
        self.pid = None
        self._failures = 1 if now - self._started_at > HEALTHY_S else self._failures + 1
        say(f"{self.name} ended with {os.waitstatus_to_exitcode(status)}")
        if self._failures > MOST_FAILURES:
            end(f"{self.name} failed {self._failures} times in a row")
        self._start_at = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def end(reason: str, code: int = 1) -> NoReturn:
    say(f"{reason}: the sandbox ends")
    leave(code)


def leave(code: int) -> NoReturn:
    """End, and everything with it: the kernel sees to that where this is the first process of a pid namespace."""
    if os.getpid() != 1:
        strays.end()
    os._exit(code)


def reap() -> dict[int, int]:
    """Wait for every child that has ended, adopted orphans included; their wait statuses by pid."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def keepers_of(settings: dict[str, Any]) -> list[Keeper]:
    """Slots are numbered over all dispatchers, and so are their uids; a uid for each dispatcher comes after them."""
    counts: list[int] = settings["slots"]
    base = settings["uid_base"]
    keepers, first = [], 0
    for index, count in enumerate(counts):
        own = {
            "socket": settings["sockets"].format(index),
            "box_root": settings["box_root"],
            "slots": [first, first + count],
            "uid_base": base,
            "walls": settings["walls"],
            "recycle_after": settings["recycle_after"],
            "reaper": None if base is None else base + sum(counts) + index,
        }
        keepers.append(Keeper(f"dispatcher {index}", own))
        first += count
    return keepers


def main() -> None:
    settings = json.loads(sys.argv[1])
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: leave(0))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    keepers = keepers_of(settings)
    poll = select.epoll()
    for fd in (wake_read, *(keeper.signs for keeper in keepers)):
        poll.register(fd, select.EPOLLIN)
    last_beat = time.monotonic()
    while time.monotonic() - last_beat < LEASE_S:
        for keeper in keepers:
            keeper.look()
        ready = {fd for fd, _ in poll.poll(LOOK_S)}
        for keeper in keepers:
            if keeper.signs in ready and keeper.beaten():
                last_beat = time.monotonic()
        if wake_read in ready:
            os.read(wake_read, 4096)
        ended = reap()
        for keeper in keepers:
            if keeper.pid in ended:
                keeper.ended(ended[keeper.pid])
        if settings["walls"]["shared_uid"]:  # what calls of a zygote that died have left
            strays.end(keep={keeper.pid for keeper in keepers if keeper.pid is not None})
    end(f"no heartbeat of the owner for {LEASE_S:g} s", code=0)


if __name__ == "__main__":
    main()
