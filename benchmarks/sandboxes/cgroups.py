"""CPU accounts and weights, from cgroups (v1 or v2) where they may be used and from process trees elsewhere.

A container weighs as much as the processes that it stands for; a peer must not be weaker against whatever else
runs on the machine, so each one's processes get a group of the same weight. Without the right to make
groups (not root) peers run unweighted and their CPU time is summed over the process tree.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """CPU-seconds of a process and its descendants, with those that ended and were waited for."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0.0
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def folder_of(pid: int, controller: str) -> Path | None:
    """Where the group of process `pid` is shown, for v1's `controller` or in v2's one hierarchy."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(","):
            return ROOT / controller / path.lstrip("/")
        if number == "0" and not (ROOT / controller).is_dir():
            return ROOT / path.lstrip("/")
    return None


def folder_cpu_s(folder: Path) -> float:
    """CPU-seconds of a group, ever."""
    usage = folder / "cpuacct.usage"
    if usage.is_file():
        return int(usage.read_text()) / 1e9
    stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    return int(stat["usage_usec"]) / 1e6


class Group:
    """A group of processes with a CPU weight (in v1's shares) and an account of its own."""

    def __init__(self, name: str, shares: int) -> None:
        self.name = f"rstar2-bench-{name}-{os.getpid()}"
        self.weighted = True
        v1 = (ROOT / "cpuacct").is_dir()
        self._folders = (
            [ROOT / part / self.name for part in ("cpu", "cpuacct")] if v1 else [ROOT / self.name]
        )
        try:
            for folder in self._folders:
                folder.mkdir(exist_ok=True)
            if v1:
                (self._folders[0] / "cpu.shares").write_text(str(shares))
            else:
                # The kernel's own conversion of shares, 2 to 262144, into weights, 1 to 10000.
                weight = 1 + (shares - 2) * 9999 // 262142
                (self._folders[0] / "cpu.weight").write_text(str(weight))
        except OSError:
            self.close()
            self.weighted = False

    def enter(self) -> list[str]:
        """Prefix of a command: it becomes that command once it is in the group, so all it starts is too."""
        if not self.weighted:
            return []
        moves = [f"echo $$ >{folder}/cgroup.procs" for folder in self._folders]
        return ["sh", "-c", "; ".join([*moves, 'exec "$@"']), "sh"]

    def cpu_s(self, pids: list[int]) -> float:
        """Of the group; of the trees of `pids` where there is no group."""
        if self.weighted:
            return folder_cpu_s(self._folders[-1])
        return sum(map(tree_cpu_s, pids))

    def close(self) -> None:
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
