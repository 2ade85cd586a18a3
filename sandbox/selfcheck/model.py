"""What a program of the suite is: its code, and what must hold of its outcome, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandbox.config import Limits
from sandbox.outcome import Status

SHORT = Limits(cpu_s=1, wall_s=2)
"""For programs that are to meet a limit."""
PATIENT = Limits(cpu_s=4, wall_s=60)
"""For programs that are to end by themselves, however busy the machine."""

OK = (Status.OK,)
ERROR = (Status.ERROR,)
OUT_OF_TIME = (Status.TIMEOUT, Status.CPU_LIMIT)
CONTAINED = tuple(status for status in Status if not status.infrastructure)
"""Whatever the program comes to is its own affair, as long as nobody else notices."""

Level = Literal["docker", "ns-root", "userns", "landlock"]


@dataclass(frozen=True)
class Look:
    """A second program, run afterwards once in every slot: it must find nothing of the first."""

    code: str
    stdout: str


@dataclass(frozen=True)
class Program:
    """One hostile or awkward program. Streams are compared as text; `None` means: anything will do."""

    name: str
    holds: str
    """The promise, as a sentence."""
    code: str
    status: tuple[Status, ...] = OK
    stdout: str | None = None
    stdout_has: tuple[str, ...] = ()
    stderr: str | None = None
    stderr_has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    """In neither stream."""
    exit_code: int | None = None
    signal: int | None = None
    truncated: bool | None = None
    stdin: str = ""
    limits: Limits = PATIENT
    mode: Literal["script", "cell"] = "script"
    history: tuple[str, ...] = ()
    look: Look | None = None
    distinct: bool = False
    """Run several times: no two outputs may be equal."""
    alone: bool = False
    """Takes so much that only its two innocent neighbours run beside it."""
    not_on: Mapping[Level, str] = field(default_factory=dict)
    """Levels that do not promise it, each with the reason."""


PRELUDE = '''
import ctypes, errno, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
breaches = []
NUMBERS = {
    "x86_64": dict(clone=56, ptrace=101, process_vm_readv=310, process_vm_writev=311, unshare=272, setns=308,
        mount=165, umount2=166, pivot_root=155, chroot=161, bpf=321, keyctl=250, add_key=248, request_key=249,
        perf_event_open=298, userfaultfd=323, personality=135, init_module=175, finit_module=313,
        delete_module=176, kexec_load=246, reboot=169, swapon=167, settimeofday=164, clock_settime=227,
        sethostname=170, syslog=103, acct=163, open_by_handle_at=304, fanotify_init=300, kcmp=312,
        quotactl=179),
    "aarch64": dict(clone=220, ptrace=117, process_vm_readv=270, process_vm_writev=271, unshare=97, setns=268,
        mount=40, umount2=39, pivot_root=41, chroot=51, bpf=280, keyctl=219, add_key=217, request_key=218,
        perf_event_open=241, userfaultfd=282, personality=92, init_module=105, finit_module=273,
        delete_module=106, kexec_load=104, reboot=142, swapon=224, settimeofday=170, clock_settime=112,
        sethostname=161, syslog=116, acct=89, open_by_handle_at=265, fanotify_init=262, kcmp=272,
        quotactl=60),
}[os.uname().machine] | dict(io_uring_setup=425, open_tree=428, fsopen=430, pidfd_open=434, clone3=435,
    pidfd_getfd=438, pidfd_send_signal=424, mount_setattr=442, process_madvise=440)


def call(name, *arguments, also=()):
    """A system call that must be refused as such: an answer about its arguments means that it was let in."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *words)
    number = ctypes.get_errno()
    if result != -1 or number not in (errno.EPERM, errno.EACCES, errno.ENOSYS, *also):
        breaches.append(f"{name}: {errno.errorcode.get(number, result) if result == -1 else result}")
    return result


def names(path):
    """What can be listed there."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def others():
    """Other processes, by trying where they cannot be listed."""
    pids = [int(name) for name in names("/proc") if name.isdigit()]
    pids = pids or [pid for pid in range(1, 1 << 16) if os.path.exists(f"/proc/{pid}")]
    return [pid for pid in pids if pid != os.getpid()]


def refused(what, action):
    """An action that must fail."""
    try:
        action()
    except (OSError, ValueError):
        return
    breaches.append(what)
'''
VERDICT = "\nprint(json.dumps(sorted(set(breaches))))\n"


def powerless(
    name: str, holds: str, code: str, not_on: Mapping[Level, str] | None = None, stdin: str = ""
) -> Program:
    """A program that tries forbidden things and prints, as a JSON list, those that worked: there must be none."""
    return Program(
        name, holds, PRELUDE + code + VERDICT, stdout="[]\n", stdin=stdin, not_on=not_on or {}
    )
