"""What a sandbox holds on to: processes, open files, scratch space, memory. A soak must not make it grow."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.sandboxes.cgroups import folder_of
from benchmarks.sandboxes.ours import Running
from sandbox.box import INNER_BOX

MIB = 1 << 20
# What may differ between two idle moments without being a leak.
ALLOWED = {
    "processes": 0,
    "gateway_files": 2,
    "server_files": 2,
    "scratch_kib": 0,
    "scratch_inodes": 0,
    "memory_mib": 64,
}


@dataclass(frozen=True)
class Held:
    """-1: cannot be read here."""

    processes: int
    gateway_files: int
    server_files: int  # of all processes inside, which are the service's own when no call runs
    scratch_kib: int
    scratch_inodes: int
    memory_mib: int

    def growth(self, before: Held) -> dict[str, int]:
        return {name: value - asdict(before)[name] for name, value in asdict(self).items()}


def look(running: Running) -> Held:
    gateway = psutil.Process(running.gateway_pid)
    container = running.container()
    if container is None:
        inside = gateway.children(recursive=True)
        scratch = (-1, -1)
        memory = sum(process.memory_info().rss for process in inside)
    else:
        pid = int(container["State"]["Pid"])
        inside = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        scratch = _scratch(Path(f"/proc/{pid}/root{INNER_BOX}"))
        memory = _anonymous_bytes(pid)
    return Held(
        processes=len(inside),
        gateway_files=_files(gateway),
        server_files=sum(map(_files, inside)),
        scratch_kib=scratch[0],
        scratch_inodes=scratch[1],
        memory_mib=memory // MIB,
    )


def grown(growth: dict[str, int]) -> list[str]:
    """What grew by more than may be."""
    return [f"{name} +{value}" for name, value in growth.items() if value > ALLOWED[name]]


def _files(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error, OSError):
        return process.num_fds()
    return -1


def _scratch(boxes: Path) -> tuple[int, int]:
    """KiB and inodes in use in the slots' file systems together."""
    try:
        systems = [os.statvfs(box) for box in boxes.iterdir()]
    except OSError:
        return (-1, -1)
    used = sum((one.f_blocks - one.f_bfree) * one.f_frsize for one in systems)
    return (used // 1024, sum(one.f_files - one.f_ffree for one in systems))


def _anonymous_bytes(pid: int) -> int:
    """Memory of the container without the page cache."""
    folder = folder_of(pid, "memory")
    if folder is None or not (folder / "memory.stat").is_file():
        return -MIB
    stat = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
    return int(stat.get("total_rss", stat.get("anon", -MIB)))
