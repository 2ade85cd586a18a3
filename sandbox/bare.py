"""The box without namespaces: the same server as an ordinary process. Levels `landlock` and `none`.

At `landlock` each call shuts itself into the interpreter, the system's programs and its own scratch directory.
Calls get uids of their own where this process is root and they could still reach the interpreter; else they keep
its uid, the server ends what they leave behind by walking their descendants, and the filter of system calls is
stricter. Scratch is on disk: a file is bounded there, their sum is not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from sandbox import owner
from sandbox.box import SERVER, BoxError, Place, choose_uid_base, server_settings
from sandbox.config import SandboxConfig
from sandbox.image.server.slot import empty
from sandbox.jail import ETC_FILES, SYSTEM_DIRS
from sandbox.namespace import CODE_DIR, STOP_S, interpreter_dirs, spawn

SCRATCH = "rstar2-scratch-"
CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID = 0, 5, 6, 7


class BareBox:
    """See the module's text. `none` has the walls that can be put up, but promises nothing."""

    def __init__(self, config: SandboxConfig, place: Place, isolation: str) -> None:
        self.isolation = isolation
        self._config = config
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None

    def start(self) -> None:
        self._place.prepare()
        landlocked = self.isolation == "landlock"
        uid_base = choose_uid_base(self._config, few_uids=False) if uids_possible() else None
        self._scratch = make_scratch(self._config.all_slots, uid_base)
        settings = server_settings(
            self._config,
            uid_base,
            str(self._place.directory),
            str(self._scratch),
            readable=readable() if landlocked else None,
            required=landlocked,
        )
        command = [sys.executable, *SERVER, json.dumps(settings)]
        self._process = spawn(command, self._place, cwd=CODE_DIR.parent)

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            remove_scratch(scratch)


def uids_possible() -> bool:
    """Can calls have uids of their own, and still run this interpreter?"""
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    wanted = (CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID)
    if not all(capabilities >> number & 1 for number in wanted):
        return False
    return all(open_to_all(Path(path)) for path in (*interpreter_dirs(), tempfile.gettempdir()))


def open_to_all(directory: Path) -> bool:
    """May every user enter this directory?"""
    return all(path.stat().st_mode & 1 for path in (directory, *directory.parents))


def readable() -> list[str]:
    """What a call may read and execute: the system's programs and libraries, and this interpreter."""
    system = [f"/{name}" for name in SYSTEM_DIRS] + [f"/etc/{name}" for name in ETC_FILES]
    return [*system, *interpreter_dirs()]


def make_scratch(slots: int, uid_base: int | None) -> Path:
    """A directory for each slot, in one that tells whose they are; first what dead owners left is removed."""
    temporary = Path(tempfile.gettempdir())
    for left in owner.dead_in(temporary, SCRATCH):
        remove_scratch(left)
    top = temporary / owner.file_name(SCRATCH, os.getpid())
    try:
        top.mkdir(mode=0o711)
    except OSError as error:
        raise BoxError(f"no scratch directory could be made: {error}; set TMPDIR") from error
    top.chmod(0o711)
    for index in range(slots):
        box = top / str(index)
        box.mkdir(mode=0o700)
        if uid_base is not None:
            os.chown(box, uid_base + index, uid_base + index)
    return top


def remove_scratch(top: Path) -> None:
    """`empty` because programs leave trees that shutil.rmtree cannot delete."""
    for box in top.iterdir():
        empty(str(box))
    shutil.rmtree(top)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM has the server end all that calls have left; what still runs after that is killed."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)
