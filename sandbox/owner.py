"""Names the process that owns something, for good, so that the next start can tell what a dead owner left behind."""

from __future__ import annotations

import os
from pathlib import Path


def label(pid: int) -> str:
    """The machine's boot, the pid namespace, the pid and the start time of the process `pid`."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{boot} {namespace} {pid} {_start_time(pid)}"


def dead(owner: str) -> bool:
    """Only owners that this process could see alive are judged."""
    own_boot, own_namespace, _, _ = label(os.getpid()).split()
    boot, namespace, pid, started = owner.split()
    if (boot, namespace) != (own_boot, own_namespace):
        return False
    try:
        return _start_time(int(pid)) != started
    except OSError:
        return True


def file_name(prefix: str, pid: int) -> str:
    """The name of a directory that `pid` owns."""
    return f"{prefix}{label(pid).replace(' ', '_')}"


def dead_in(directory: Path, prefix: str) -> list[Path]:
    """The directories there, named by `file_name`, whose owners are dead."""
    return [
        path
        for path in directory.glob(f"{prefix}*_*_*_*")
        if dead(path.name.removeprefix(prefix).replace("_", " "))
    ]


def _start_time(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[19]
