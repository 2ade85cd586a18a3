"""Landlock: a process shuts itself, and all that it starts, out of the files and processes around it.

What a restricted process may not do, whatever its uid says: open a file outside the given ones, bind or connect
TCP, signal or trace a process outside its own domain, reach an abstract socket made outside of it. What Landlock
does not cover (stat, chmod and the like, limits and priorities of other processes) is left to seccomp.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress

from . import linux

NEEDED_ABI = 6  # scopes of signals and abstract sockets: Linux 6.12
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_SOCK, MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ALL_FILES = (1 << 16) - 1
ALL_TCP = 0b11
ALL_SCOPES = 0b11
READ = EXECUTE | READ_FILE | READ_DIR
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE  # rights that a rule for a file can give
SCRATCH = ALL_FILES & ~(MAKE_CHAR | MAKE_BLOCK | MAKE_SOCK | IOCTL_DEV)
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE


class _Handled(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "tcp", "scopes")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32)]


def abi() -> int:
    """The version that this kernel speaks; 0: none."""
    try:
        return linux.syscall(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION)
    except OSError:
        return 0


class Rule:
    """What may be done with the open directory or file `fd` and below it."""

    def __init__(self, fd: int, allowed: int) -> None:
        self.fd = fd
        self._beneath = _Beneath(allowed, fd)

    def add_to(self, ruleset: int) -> None:
        linux.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(self._beneath), 0)


def rule(path: str, allowed: int) -> Rule:
    """A rule for a path, which stays good if the path is renamed; OSError if there is none."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return Rule(fd, allowed if os.path.isdir(path) else allowed & OF_A_FILE)


def rules(paths: Iterable[str], allowed: int) -> list[Rule]:
    """Rules for those of `paths` that exist."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append(rule(path, allowed))
    return found


def restrict(allowed: Iterable[Rule]) -> None:
    """Shut this process in: from here on it has what the rules allow and nothing else."""
    handled = _Handled(ALL_FILES, ALL_TCP, ALL_SCOPES)
    ruleset = linux.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    for one in allowed:
        one.add_to(ruleset)
    linux.syscall(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
