"""The few system calls that Python's library does not offer. Standard library only."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_FFLUSH = ctypes.PyDLL(
    None
).fflush  # without letting the interpreter's lock go, which takes longer than the call
_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522
PR_GET_TID_ADDRESS = 40
CLONE_PARENT = 1 << 15
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 1 << 21, 1 << 24
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
MADV_COLLAPSE = 25
HUGE = 1 << 21
WAIT_FOR_ALL = 0x40000000  # __WALL: whatever way they were cloned


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


class SiblingFork:
    """fork(2), but the child's parent is this process's own parent.

    So whoever started a zygote is the parent of what the zygote forks: it learns itself how they end, and they
    outlive the zygote. Only for a process of one thread whose locks are all free: the handlers of
    `os.register_at_fork` do not run.
    """

    def __init__(self) -> None:
        flags = CLONE_PARENT | signal.SIGCHLD
        thread_id = ctypes.c_void_p()
        if _LIBC.prctl(PR_GET_TID_ADDRESS, ctypes.byref(thread_id), 0, 0, 0) == 0:
            flags |= (
                CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
            )  # libc keeps a copy, which the kernel updates
        machine = os.uname().machine
        numbers = [SYS_CLONE[machine], flags, 0, 0]
        numbers += [0, thread_id.value or 0] if machine == "aarch64" else [thread_id.value or 0, 0]
        self._arguments = [ctypes.c_long(number) for number in numbers]
        self._syscall = ctypes.PyDLL(None, use_errno=True).syscall  # keeps the interpreter's lock
        self._syscall.restype = ctypes.c_long

    def __call__(self) -> int:
        """0 in the child; in this process the child's pid."""
        pid: int = self._syscall(*self._arguments)
        if pid < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return pid


def huge_pages() -> int:
    """Have the kernel gather this process's memory into huge pages, which a fork copies 512 times as fast; how
    many it did."""
    done = 0
    for start, end in list(_anonymous_ranges()):
        for address in range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE):
            where, size = ctypes.c_void_p(address), ctypes.c_size_t(HUGE)
            done += _LIBC.madvise(where, size, MADV_COLLAPSE) == 0
    return done


def _anonymous_ranges() -> Iterator[tuple[int, int]]:
    with open("/proc/self/maps") as file:
        for line in file:
            place, rights, _, _, _, *name = line.split()
            if rights == "rw-p" and name in ([], ["[heap]"]):
                start, _, end = place.partition("-")
                yield int(start, 16), int(end, 16)


class OomCounter:
    """Whether the kernel has killed for memory in this container; never where it does not say."""

    def __init__(self) -> None:
        self._count = _oom_kills()
        self._seen_at = time.monotonic()
        self._moved_at = -math.inf

    def look(self) -> None:
        count, now = _oom_kills(), time.monotonic()
        if count != self._count:
            killed = count - self._count
            print(f"the kernel killed {killed} processes for memory", file=sys.stderr, flush=True)
            self._count, self._moved_at = count, now
        self._seen_at = now

    def moved_since(self, moment: float) -> bool:
        """Rather too often than not: a kill counts from the last look before it."""
        self.look()
        return self._moved_at >= moment


def _oom_kills() -> int:
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                fields = dict(line.split() for line in file)
        except (OSError, ValueError):
            continue
        return int(fields.get("oom_kill", 0))
    return 0
