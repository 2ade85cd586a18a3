"""A box: whatever walls the server of image/server/ runs behind. Docker and namespaces each are one."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sandbox.config import SandboxConfig
from sandbox.errors import InfrastructureError

SOCKET = "server-{}.sock"
LOG = "server.log"
# Where things are inside the box. Its parent directory is closed to calls, so they cannot reach the socket.
INNER_DIR = "/run/private/sock"
INNER_BOX = "/box"
INNER_CODE = "/opt/sandbox"  # holds the package `server`
WORKER_MB = 384  # a worker's own processes; its zygotes take about 220
SERVICE_TASKS = 16  # processes and threads of one worker, and of PID 1
MOST_OF_MACHINE = 0.8
MIB = 1 << 20
SERVER = ["-s", "-m", "server.pid1"]  # arguments of the interpreter, in INNER_CODE


class BoxError(InfrastructureError):
    """The box could not be started; the message says why and what to do."""


class Box(Protocol):
    """Started and stopped by the gateway; blocking calls."""

    isolation: str

    def start(self) -> None:
        """Start the server. It is up when `socket_path` accepts; it may still be loading then."""

    def running(self) -> bool:
        """False once it has ended by itself."""

    def stop(self) -> None:
        """End it and everything in it. May be called at any time, more than once."""


@dataclass(frozen=True)
class Place:
    """The directory that the gateway shares with its box."""

    directory: Path

    def socket(self, worker: int) -> Path:
        """Where dispatcher number `worker` listens."""
        return self.directory / SOCKET.format(worker)

    @property
    def log(self) -> Path:
        return self.directory / LOG

    def prepare(self) -> None:
        """An empty directory that the box may write to; the runtime directory around it is private."""
        self.directory.mkdir(exist_ok=True)
        self.directory.chmod(0o777)
        for left_over in self.directory.glob(SOCKET.format("*")):
            left_over.unlink()
        self.log.unlink(missing_ok=True)

    def log_tail(self, lines: int = 12) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:]) or "(log is empty)"


def total_memory_mb(config: SandboxConfig) -> int:
    """What the service and all its calls may use together: enough for every slot at its limit, so that no call can
    take memory from another, but never the whole machine. Where that is less, the kernel may kill the wrong call,
    which then comes back as oom_victim and is repeated.
    """
    per_slot = config.limits.total_memory_mb + config.limits.scratch_mb
    workers = len(config.slots_of_workers)
    machine_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    return min(
        WORKER_MB * (1 + workers) + config.all_slots * per_slot, int(machine_mb * MOST_OF_MACHINE)
    )


def total_tasks(config: SandboxConfig) -> int:
    """Processes and threads of the service and all its calls together."""
    workers = len(config.slots_of_workers)
    return SERVICE_TASKS * (1 + workers) + config.all_slots * config.limits.tasks


def choose_uid_base(config: SandboxConfig, few_uids: bool) -> int:
    """First of the uids that the slots get, and after them the workers: the kernel counts a uid's processes
    over the whole machine, so two sandboxes must not share any. `few_uids`: only 65,536 are mapped (rootless
    engine, user namespace).
    """
    block = 2048
    wanted = config.all_slots + len(config.slots_of_workers)
    if wanted > block:
        raise BoxError(
            f"{config.all_slots} slots and {len(config.slots_of_workers)} workers need {wanted} uids, a sandbox "
            f"has {block}; set sandbox.workers or sandbox.slots lower"
        )
    first, last = (20_000, 60_000) if few_uids else (1 << 20, 1 << 30)
    return random.SystemRandom().randrange(first // block + 1, last // block) * block


def server_settings(
    config: SandboxConfig,
    uid_base: int | None,
    box_dir: str,
    box_root: str,
    readable: list[str] | None = None,
    required: bool = True,
) -> dict[str, Any]:
    """The first argument of image/server/pid1.py. `readable` and `required` are those of image/server/walls.py."""
    return {
        "sockets": f"{box_dir}/{SOCKET}",
        "log": f"{box_dir}/{LOG}",
        "box_root": box_root,
        "slots": config.slots_of_workers,
        "uid_base": uid_base,
        "recycle_after": config.recycle_after,
        "walls": {"shared_uid": uid_base is None, "readable": readable, "required": required},
    }
