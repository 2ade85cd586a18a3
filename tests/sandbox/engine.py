"""A Docker engine of a test's own, which it may kill: the machine's own engine serves others."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def eventually(condition: Callable[[], bool], within_s: float = 12.0) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at, f"still not so after {within_s:g} s"
        time.sleep(0.1)


def processes(wanted: Callable[[int], bool]) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted(pid)]


class Engine:
    """A Docker engine of the test's own, with the sandbox's image in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.host = f"unix://{directory}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        place = self._directory
        for left in ("pid", "exec/containerd/containerd.pid"):  # of dead processes, maybe unreaped
            (place / left).unlink(missing_ok=True)
        command = ["dockerd", "--data-root", f"{place}/data", "--exec-root", f"{place}/exec"]
        command += ["--host", self.host, "--pidfile", f"{place}/pid"]
        command += ["--bridge=none", "--iptables=false"]
        with open(place / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(self._answers, 60)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)
        for shim in processes(self._is_ours):  # of containers that outlived a killed engine
            os.kill(shim, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f"{self._directory}/"):
                subprocess.run(["umount", "--lazy", mount], check=True)

    def _is_ours(self, pid: int) -> bool:
        try:
            return f"{self._directory}/".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def _answers(self) -> bool:
        command = ["docker", "--host", self.host, "info"]
        return subprocess.run(command, capture_output=True).returncode == 0
