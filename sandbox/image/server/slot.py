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
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Slot:
    """`uid` None: calls share the service's uid (level `none`), and only their process group is killed."""

    def __init__(self, index: int, uid: int | None, reaper: int | None, box: str) -> None:
        self.index = index
        self.uid = uid
        self.box = box
        self.pid: int | None = None  # leader of the call that runs here
        self._reaper = reaper

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

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to every process of this slot."""
        with suppress(ProcessLookupError, PermissionError):
            if self.uid is None:
                if self.pid is not None:
                    os.killpg(self.pid, number)
                return
            with self._as_slot():
                os.kill(-1, number)

    def survivors(self) -> bool:
        """Does a process of this slot's uid still exist (a zombie counts)?"""
        if self.uid is None:
            return False
        wanted = str(self.uid)
        own = str(os.getpid())
        for name in os.listdir("/proc"):
            if not name.isdigit() or name in ("1", own):
                continue
            try:
                with open(f"/proc/{name}/status", "rb") as file:
                    text = file.read(1024).decode("ascii", "replace")
            except OSError:
                continue
            uid_line = text.partition("\nUid:")[2].partition("\n")[0]
            if wanted in uid_line.split():
                return True
        return False

    def clean(self) -> None:
        """Empty the scratch directory."""
        with self._as_slot():
            os.chmod(self.box, 0o700)
            empty(self.box)


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
