"""The forked child of one call: gives up every right that it has, then runs the program.

It owns no file but the program's three standard streams, so there is no protocol that a program could
forge. It leaves only by `_exit` or by a signal, both captured before the program can replace them: the
frames of the zygote below must never go on running in here.
"""

from __future__ import annotations

import math
import os
import resource
import signal
from typing import Any

from . import linux, program

MEMORY_SIGNAL = (
    63  # how a child says "uncaught MemoryError": no exit code is taken from the program
)
MIB = 1 << 20
MAX_FILE = 64 * MIB
MAX_OPEN_FILES = 256


def run(request: dict[str, Any], fds: list[int], base_memory: int) -> None:
    """Become the program. Does not return."""
    kill, pid, sigkill = os.kill, os.getpid(), signal.SIGKILL
    try:
        _become(request, fds, base_memory)
    finally:
        kill(pid, sigkill)


def _become(request: dict[str, Any], fds: list[int], base_memory: int) -> None:
    leave = os._exit
    linux.die_with_parent()
    os.setsid()
    with open(fds[0], "rb", closefd=False) as file:
        code = file.read()
    for target, source in enumerate(fds[1:]):
        os.dup2(source, target)
    signal.set_wakeup_fd(-1)
    os.closerange(3, 1 << 20)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _limit(request["limits"], base_memory)
    _drop_rights(request["uid"])
    box = request["box"]
    os.chdir(box)
    os.environ["HOME"] = os.environ["TMPDIR"] = box
    try:
        leave(program.run(code, box, request["mode"]))
    except MemoryError:
        os.kill(os.getpid(), MEMORY_SIGNAL)


def _limit(limits: dict[str, Any], base_memory: int) -> None:
    cpu_s = math.ceil(limits["cpu_s"])
    memory = base_memory + limits["memory_mb"] * MIB
    for which, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_NPROC, limits["tasks"], limits["tasks"]),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, MAX_FILE, MAX_FILE),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(which, (soft, hard))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, calls go before the service


def _drop_rights(uid: int | None) -> None:
    if uid is None:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.die_with_parent()  # a change of uid has cleared it
    if os.getresuid() != (uid, uid, uid):
        raise PermissionError("the uid was not dropped")
