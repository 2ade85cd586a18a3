"""A stage child's ties to other processes: it does not outlive its launcher, and it ends what a killed
predecessor left behind (an engine that still holds memory, a Ray daemon).

Every process of a try carries the try's token in its environment, so leftovers are found for certain, also
when they started their own session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import uuid
from pathlib import Path

LAUNCHER, TOKEN = "RSTAR2_LAUNCHER", "RSTAR2_TOKEN"
PR_SET_PDEATHSIG = 1
TERM_S = 2.0


def child_environment() -> dict[str, str]:
    """Environment of a new try of a stage, for its launcher."""
    # OpenMP threads that spin while they wait cost a factor of ten on shared cores.
    defaults = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "PYTHONUNBUFFERED": "1"}
    return defaults | os.environ | {LAUNCHER: str(os.getpid()), TOKEN: uuid.uuid4().hex}


def die_with_launcher() -> None:
    """Ask the kernel for SIGTERM when the launcher dies; leave at once if it is dead already."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):
        sys.exit(143)


def end_leftovers(token_file: Path) -> None:
    """Kill what is left of the try named in `token_file`; then name this one. Call with the lock held."""
    own = os.environ.get(TOKEN, "")
    before = token_file.read_text() if token_file.is_file() else ""
    if before and before != own:
        _signal(holders(before), signal.SIGKILL)
    token_file.write_text(own)


def end_all(token: str, besides: int | None = None, wait_s: float = TERM_S) -> None:
    """End every process of a try: SIGTERM, and SIGKILL for what is there `wait_s` later."""

    def alive() -> list[int]:
        return [pid for pid in holders(token) if pid != besides]

    _signal(alive(), signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    _signal(alive(), signal.SIGKILL)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def holders(token: str) -> list[int]:
    """Processes of ours whose environment carries `token`."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            environment = (directory / "environ").read_bytes()
        except OSError:  # it ended, or belongs to somebody else
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(directory.name))
    return found


def tied(command: list[str]) -> list[str]:
    """`command`, run so that it gets SIGTERM when the process that starts it dies."""
    return [sys.executable, "-m", "tasks.processes", *command]


if __name__ == "__main__":
    die_with_launcher()
    os.execvp(sys.argv[1], sys.argv[1:])
