"""The first process of the sandbox: holds the lease, reaps orphans, and ends everything by ending.

The owner outside sends heartbeats to the dispatcher, which passes each on as a byte in a pipe. When none
has come for LEASE_S, or when the dispatcher ends, this process exits; it is PID 1 of its namespace, so the
kernel then kills all the rest. Nothing that the owner did or failed to do can leave a sandbox behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

from . import linux

LEASE_S = 8.0
LOOK_S = 0.5


def reap() -> set[int]:
    """Wait for every child that has ended, adopted orphans included; their pids."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.add(pid)


def main() -> None:
    log = os.open(json.loads(sys.argv[1])["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    beat_read, beat_write = os.pipe()
    dispatcher = subprocess.Popen(
        [sys.executable, "-s", "-m", "server.dispatcher", sys.argv[1], str(beat_write)],
        pass_fds=[beat_write],
    )
    os.close(beat_write)
    last_beat = time.monotonic()
    while time.monotonic() - last_beat < LEASE_S:
        ready, _, _ = select.select([beat_read, wake_read], [], [], LOOK_S)
        if beat_read in ready:
            if not os.read(beat_read, 4096):
                break
            last_beat = time.monotonic()
        if wake_read in ready:
            os.read(wake_read, 4096)
            if dispatcher.pid in reap():
                break
    else:
        print(
            f"no heartbeat of the owner for {LEASE_S:g} s: the sandbox ends",
            file=sys.stderr,
            flush=True,
        )
        dispatcher.kill()
        os._exit(0)
    print("the dispatcher ended: the sandbox ends", file=sys.stderr, flush=True)
    dispatcher.kill()
    os._exit(1)


if __name__ == "__main__":
    main()
