"""A slot: a uid and a scratch directory that one call at a time has to itself.

After a call nothing of it survives: every process of the slot's uid is killed (`kill(-1)` with the slot's
uid as effective one reaches exactly those, and needs no list of pids that a fork bomb could outrun), and the
scratch directory is emptied whatever the call left there. Both act *as* the slot, so they can do no more
than the call itself could.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import tree

MODE = 0o700
AGAIN_S = 0.002  # between kills of what does not end at once
QUIET_S = 5.0  # a slot that is not empty by then is given up


class Slot:
    """`uid` None: calls share the service's uid, and are killed as a process group."""

    def __init__(self, index: int, uid: int | None, reaper: int | None, box: str) -> None:
        self.index = index
        self.uid = uid
        self.box = box
        self._reaper = reaper
        with self._as_slot():
            os.chmod(box, MODE)
            self._box_fd = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextmanager
    def _as_slot(self) -> Iterator[None]:
        if self.uid is None or self._reaper is None:
            yield
            return
        # The real uid counts for kill(2) too: a uid that nothing runs under keeps the service out of range.
        os.setresgid(-1, self.uid, -1)
        os.setresuid(self._reaper, self.uid, -1)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(-1, 0, -1)

    def kill(self, leader: int | None, number: int = signal.SIGKILL) -> None:
        """Send a signal to every process of this slot; `leader` is the first one of its call, if that lives."""
        with suppress(ProcessLookupError, PermissionError):
            if self.uid is None:
                if leader is not None:
                    os.killpg(leader, number)
                return
            with self._as_slot():
                os.kill(-1, number)

    def clean(self) -> None:
        """Empty the scratch directory, and make it as it was at first."""
        names, mode = os.listdir(self._box_fd), stat.S_IMODE(os.fstat(self._box_fd).st_mode)
        attributes = os.listxattr(self._box_fd)
        if not names and not attributes and mode == MODE:
            return
        with self._as_slot():
            os.chmod(self.box, MODE)
            empty(self.box)
            for name in attributes:
                os.removexattr(self._box_fd, name)


def slots_of(settings: dict[str, Any]) -> dict[int, Slot]:
    """The slots by their numbers, with nothing in them that a former dispatcher left behind."""
    base = settings["uid_base"]
    slots = [
        Slot(
            number,
            None if base is None else base + number,
            settings["reaper"],
            os.path.join(settings["box_root"], str(number)),
        )
        for number in range(*settings["slots"])
    ]
    give_up_at = time.monotonic() + QUIET_S
    for slot in slots:
        slot.kill(None)
        while slot.uid is not None and tree.any_of(slot.uid):
            if time.monotonic() > give_up_at:
                sys.exit(f"slot {slot.index}: processes of a former dispatcher do not end")
            time.sleep(AGAIN_S)
            slot.kill(None)
        slot.clean()
    return {slot.index: slot for slot in slots}


def empty(top: str) -> None:
    """Delete everything below `top`, however deep, and whatever its mode bits.

    Never recursive and never holding more than two directories open: what is found inside a directory is
    first moved up to `top` (a rename needs no free inode), so a chain of any depth is eaten from its head.
    """
    top_fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    moved = 0
    try:
        while names := os.listdir(top_fd):
            for name in names:
                if not stat.S_ISDIR(os.stat(name, dir_fd=top_fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=top_fd)
                    continue
                moved = _flatten(top_fd, name, moved)
                os.rmdir(name, dir_fd=top_fd)
    finally:
        os.close(top_fd)


def _flatten(top_fd: int, name: str, moved: int) -> int:
    """Empty the directory `name`: unlink its files, move its directories up. Returns the new count of moves."""
    os.chmod(name, 0o700, dir_fd=top_fd)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top_fd)
    try:
        for inner in os.listdir(fd):
            if not stat.S_ISDIR(os.stat(inner, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(inner, dir_fd=fd)
                continue
            os.chmod(
                inner, 0o700, dir_fd=fd
            )  # moving a directory rewrites its "..", which needs write access
            while True:
                moved += 1
                target = f".moved-{moved}"
                try:
                    os.stat(target, dir_fd=top_fd, follow_symlinks=False)
                except FileNotFoundError:
                    break
            os.rename(inner, target, src_dir_fd=fd, dst_dir_fd=top_fd)
    finally:
        os.close(fd)
    return moved
