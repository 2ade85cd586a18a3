"""Processes that a backend starts: in a session and a group of their own, ended in all cases."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import psutil

from benchmarks.sandboxes.cgroups import Group

STOP_S = 5.0


class Children:
    """Log files go to `directory`."""

    def __init__(self, directory: Path, group: Group) -> None:
        self._directory = directory
        self._group = group
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def spawn(
        self, name: str, command: list[str], cwd: Path, env: dict[str, str] | None = None
    ) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*self._group.enter(), *command],
                    cwd=cwd,
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def ended(self) -> str | None:
        """The log's end of a process that has ended by itself, if one has."""
        for process in self._processes:
            if process.poll() is not None:
                logs = [
                    f"{p.name}: {p.read_text(errors='replace')[-1500:]}"
                    for p in self._directory.glob("*.log")
                ]
                return f"code {process.returncode}; logs end:\n" + "\n".join(logs)
        return None

    def stop(self) -> None:
        """End them and all their descendants, in whatever session."""
        for process in self._processes:
            family = _family(process.pid)
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGKILL)
        self._processes.clear()


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
