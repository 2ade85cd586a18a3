"""Bounds on what all calls of a box use together, in control groups of the box's own, where root may make some.

Version 1 groups are made inside this process's own. Version 2 allows processes only in leaves, so there the group
is made beside this process's own one, under a parent that has given its children the controllers.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from sandbox import owner

ROOT = Path("/sys/fs/cgroup")
PREFIX = "rstar2-sandbox-"
REMOVE_S, PAUSE_S = 3.0, 0.02
CONTROLLERS = ("memory", "pids")
MIB = 1 << 20


@dataclass(frozen=True)
class Groups:
    """`oom_file` counts the kills for memory; `oom_name` is its place below /sys/fs/cgroup in a container."""

    directories: list[Path]
    oom_file: Path
    oom_name: str

    def remove(self) -> None:
        """As soon as their processes, killed already, have ended; what stays is left to the next start."""
        give_up_at = time.monotonic() + REMOVE_S
        for directory in self.directories:
            while not _removed(directory) and time.monotonic() < give_up_at:
                time.sleep(PAUSE_S)


def make(memory_mb: int, tasks: int, root: Path = ROOT) -> Groups:
    """Groups with these bounds; OSError says why there can be none."""
    paths = _own_paths()
    name = owner.file_name(PREFIX, os.getpid())
    if (root / "cgroup.controllers").exists():
        own = root / paths[""].lstrip("/")
        parent = own if own == root else own.parent
        granted = (parent / "cgroup.subtree_control").read_text().split()
        if missing := [one for one in CONTROLLERS if one not in granted]:
            raise OSError(f"{parent} does not give its children {' and '.join(missing)}")
        group = _made(parent, name)
        _write(group / "memory.max", memory_mb * MIB)
        _write(group / "memory.swap.max", 0, optional=True)
        _write(group / "pids.max", tasks)
        return Groups([group], group / "memory.events", "memory.events")
    memory, pids = (_made(_version_1(root, one, paths), name) for one in CONTROLLERS)
    _write(memory / "memory.limit_in_bytes", memory_mb * MIB)
    _write(memory / "memory.memsw.limit_in_bytes", memory_mb * MIB, optional=True)
    _write(pids / "pids.max", tasks)
    return Groups([memory, pids], memory / "memory.oom_control", "memory/memory.oom_control")


def obstacle() -> str | None:
    """Why no group can be made here; None if one can."""
    try:
        make(MIB, 1).remove()
    except OSError as error:
        return str(error)
    return None


def _own_paths() -> dict[str, str]:
    """This process's group by controller; that of version 2 under ''."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _version_1(root: Path, controller: str, paths: dict[str, str]) -> Path:
    """A container without a cgroup namespace of its own sees the host's path and has its group at the root."""
    own = root / controller / paths.get(controller, "/").lstrip("/")
    return own if own.is_dir() else root / controller


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # not empty yet
        return False
    return True


def _made(parent: Path, name: str) -> Path:
    for left in owner.dead_in(parent, PREFIX):
        _removed(left)
    group = parent / name
    group.mkdir(exist_ok=True)
    return group


def _write(file: Path, value: int, optional: bool = False) -> None:
    if optional and not file.exists():
        return
    file.write_text(str(value))
