"""The forked child of one call: gives up every right that it has, then runs the program.

It owns no file but the program's three standard streams, so there is no protocol that a program could
forge. It leaves only by `_exit` or by a signal, both captured before the program can replace them: the
frames of the zygote below must never go on running in here.
"""

from __future__ import annotations

import os
import resource
import signal

from . import program
from .order import NOBODY, Order
from .walls import Walls

MEMORY_SIGNAL = (
    63  # how a child says "uncaught MemoryError": no exit code is taken from the program
)
MIB = 1 << 20


def run(order: Order, box: str, fds: list[int], base_memory: int, walls: Walls) -> None:
    """Become the program. Does not return, whatever the program has replaced meanwhile."""
    kill, getpid, sigkill = os.kill, os.getpid, signal.SIGKILL
    try:
        _become(order, box, fds, base_memory, walls)
    finally:
        # Not the pid of before: a child that the program forked may be the one that comes by here.
        kill(getpid(), sigkill)


def _become(order: Order, box: str, fds: list[int], base_memory: int, walls: Walls) -> None:
    leave = os._exit
    os.setsid()
    code = os.read(fds[0], order.size)
    for target, source in enumerate(fds[1:]):
        os.dup2(source, target)
    _limit(order, base_memory, walls.shared_uid)
    _drop_rights(order.uid)
    os.chdir(box)
    os.environ["HOME"] = os.environ["TMPDIR"] = box
    walls.close_behind(box)
    os.closerange(3, 1 << 20)
    try:
        leave(program.run(code, box, order.cell))
    except MemoryError:
        signal.signal(MEMORY_SIGNAL, signal.SIG_DFL)
        os.kill(os.getpid(), MEMORY_SIGNAL)


def _limit(order: Order, base_memory: int, shared_uid: bool) -> None:
    memory = base_memory + order.memory_mb * MIB
    # The kernel counts tasks by uid. Where the uid has others than the call's, nobody knows how many, but no more
    # than the machine has.
    tasks = order.tasks + (_tasks_of_machine() if shared_uid else 0)
    for which, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, order.cpu_s, order.cpu_s + 1),
        (resource.RLIMIT_NPROC, tasks, tasks),
    ):
        resource.setrlimit(which, (soft, hard))
    adjust = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(adjust, b"1000")  # when memory runs out, calls go before the service
    os.close(adjust)


def _tasks_of_machine() -> int:
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def _drop_rights(uid: int) -> None:
    if uid == NOBODY:
        return
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid):
        raise PermissionError("the uid was not dropped")
