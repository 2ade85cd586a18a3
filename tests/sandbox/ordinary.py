"""Sandboxes as an ordinary user has them, also where the tests run as root.

Root makes a mount namespace of its own in which an invented user, with subordinate uids if asked for, can reach
the interpreter and this checkout; then it becomes that user. Nothing of the machine is changed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.bare import open_to_all
from sandbox.namespace import interpreter_dirs

UID = 100_000 + os.getpid() % 100_000  # two test runs at once must not share one
FIRST_SUBUID = 700_000_000 + 65_536 * (os.getpid() % 10_000)
SUBUIDS = 65_536
CHECKOUT = Path(__file__).parents[2]
SECRET = "sk-only-the-owner-knows"


@dataclass(frozen=True)
class Served:
    """A sandbox of `python -m sandbox serve` and its owner."""

    endpoint: str
    isolation: str
    owner_pid: int
    home: Path


@contextmanager
def served(level: str, as_root: bool, subuids: bool = True) -> Iterator[Served]:
    """A sandbox at `level`, owned by an ordinary user (or by root where everybody can reach the interpreter)."""
    if as_root and os.geteuid() != 0:
        pytest.skip("needs root")
    home = Path(tempfile.mkdtemp(prefix="rstar2-home-"))
    config = {"isolation": level, "workers": 1, "slots": 3}
    command = [sys.executable, "-m", "sandbox", "serve", "--config", json.dumps(config)]
    environment = {
        **os.environ,
        "HOME": str(home),
        "TMPDIR": str(home),
        "API_TOKEN": SECRET,
        "DOCKER_HOST": "unix:///nowhere/docker.sock",
    }
    if os.geteuid() == 0:
        command = [*_open_interpreter(home, subuids), *([] if as_root else _become(UID)), *command]
        os.chown(home, *((0, 0) if as_root else (UID, UID)))
    home.chmod(0o711)
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"no sandbox at {level}: {process.stderr.read()}")
        report = json.loads(line)
        yield Served(report["endpoint"], report["isolation"], process.pid, home)
    finally:
        process.terminate()
        process.communicate()
        shutil.rmtree(home)


def _become(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def _open_interpreter(place: Path, subuids: bool) -> list[str]:
    """The start of a command that shows every user what it needs, in a mount namespace of its own."""
    wanted = [
        Path(path) for path in (*interpreter_dirs(), str(CHECKOUT)) if not open_to_all(Path(path))
    ]
    steps: list[list[str]] = []
    for number, path in enumerate(wanted):
        kept = place / f"kept-{number}"
        kept.mkdir()
        steps.append(["mount", "--bind", str(path), str(kept)])
    for top in sorted({_closed_parent(path) for path in wanted}):
        steps.append(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(top)])
    for number, path in enumerate(wanted):
        steps.append(["mkdir", "-p", str(path)])
        steps.append(["mount", "--move", str(place / f"kept-{number}"), str(path)])
    user = f"tester:x:{UID}:{UID}::{place}:/bin/sh\n"
    for name, text in (
        ("passwd", Path("/etc/passwd").read_text() + user),
        ("subuid", f"tester:{FIRST_SUBUID}:{SUBUIDS}\n" if subuids else ""),
        ("subgid", f"tester:{FIRST_SUBUID}:{SUBUIDS}\n" if subuids else ""),
    ):
        if Path("/etc", name).exists():
            (place / name).write_text(text)
            steps.append(["mount", "--bind", str(place / name), f"/etc/{name}"])
    script = " && ".join(map(shlex.join, steps))
    return ["unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh"]


def _closed_parent(path: Path) -> Path:
    """The highest directory above `path` that not everybody may enter."""
    return next(one for one in reversed(path.parents) if not one.stat().st_mode & 1)
