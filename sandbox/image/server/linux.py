"""The few system calls that Python's library does not offer. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_FFLUSH = _LIBC.fflush
_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522


def prctl(option: int, argument: int, second: int = 0) -> None:
    """prctl(2); raises OSError."""
    if _LIBC.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(second), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {argument}): {os.strerror(number)}")


def flush_c_streams() -> None:
    """Write out what C code has buffered, as an interpreter does at its end."""
    _FFLUSH(None)


def syscall(number: int, *arguments: Any) -> int:
    """A system call that libc has no function for; raises OSError."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _SYSCALL(ctypes.c_long(number), *wide)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"system call {number}: {os.strerror(error)}")
    return result


def drop_capabilities() -> None:
    """Give up every capability of this process."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _LIBC.capset(header, none) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def oom_kills() -> int:
    """How often the kernel has killed for memory in this container; 0 where it does not say."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                fields = dict(line.split() for line in file)
        except (OSError, ValueError):
            continue
        return int(fields.get("oom_kill", 0))
    return 0
