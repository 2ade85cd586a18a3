"""Boxes in namespaces of this machine: the same server behind `unshare`, with a private root.

Uids, network, files, capabilities and the limits of one process are held as in the container. What all calls use
together is bounded where root can make a cgroup, and nowhere else.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from sandbox import cgroup
from sandbox.box import (
    INNER_BOX,
    INNER_CODE,
    INNER_DIR,
    SERVER,
    BoxError,
    Place,
    choose_uid_base,
    server_settings,
    total_memory_mb,
    total_tasks,
)
from sandbox.config import SandboxConfig
from sandbox.jail import SYSTEM_DIRS, JailSpec

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", "--ipc", "--uts"]
USER = ["--user", "--map-root-user", "--map-auto"]
CODE_DIR = Path(__file__).parent / "image" / "server"
STOP_S = 5.0


class NamespaceBox:
    """Levels `ns-root` and `userns`; the latter needs a range of subordinate uids (newuidmap)."""

    def __init__(self, config: SandboxConfig, place: Place, isolation: str) -> None:
        self.isolation = isolation
        self._config = config
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: cgroup.Groups | None = None

    def start(self) -> None:
        self._place.prepare()
        self._groups = self._bound()
        groups = self._groups
        in_user_namespace = self.isolation == "userns"
        uid_base = choose_uid_base(self._config, few_uids=in_user_namespace)
        spec = JailSpec(
            shared_dir=str(self._place.directory),
            shared_inside=INNER_DIR,
            code_dir=str(CODE_DIR),
            code_inside=INNER_CODE,
            server=SERVER,
            box_root=INNER_BOX,
            scratch=[_scratch(self._config, uid_base, i) for i in range(self._config.all_slots)],
            visible=interpreter_dirs(),
            settings=server_settings(self._config, uid_base, INNER_DIR, INNER_BOX),
            groups=[] if groups is None else [str(path) for path in groups.directories],
            oom_file=None
            if groups is None
            else (str(groups.oom_file), f"/sys/fs/cgroup/{groups.oom_name}"),
        )
        command = [*UNSHARE, *(USER if in_user_namespace else [])]
        command += [
            sys.executable,
            "-s",
            "-m",
            "sandbox.jail",
            json.dumps(dataclasses.asdict(spec)),
        ]
        self._process = spawn(command, self._place, cwd=Path(__file__).parents[1])

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        process, self._process = self._process, None
        end(process)
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.remove()

    def _bound(self) -> cgroup.Groups | None:
        """Control groups for all calls together; an ordinary user may make none."""
        if self.isolation != "ns-root":
            return None
        try:
            return cgroup.make(total_memory_mb(self._config), total_tasks(self._config))
        except OSError as error:
            print(
                f"sandbox: memory and tasks of all calls together are not bounded: {error}",
                file=sys.stderr,
                flush=True,
            )
            return None


def interpreter_dirs() -> list[str]:
    """Directories that this interpreter and its packages need, without those inside the system's ones."""
    wanted = {
        sys.prefix,
        sys.base_prefix,
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    }
    wanted |= {str(Path(sys.executable).resolve().parent.parent)}
    home = Path(os.environ.get("HOME", "/"))
    if too_wide := wanted & {str(path) for path in (home, *home.parents)} - {"/", "."}:
        raise BoxError(
            f"this Python is installed in {', '.join(too_wide)}, which holds your own files too, and calls must "
            "be able to read all of it; use a virtual environment or another Python"
        )
    system = tuple(f"/{name}" for name in SYSTEM_DIRS)
    kept: list[str] = []
    for path in sorted(str(Path(p).absolute()) for p in wanted):
        inside = (*system, *kept)
        if path != "/" and not any(
            path == outer or path.startswith(outer + "/") for outer in inside
        ):
            kept.append(path)
    return kept


def namespaces_work(isolation: str) -> str | None:
    """None if `unshare` can make this level's namespaces here; else what it said."""
    if shutil.which("unshare") is None:
        return "no `unshare` program (package util-linux)"
    command = [*UNSHARE, *(USER if isolation == "userns" else []), "--mount-proc", "true"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} did not end within 10 s"
    return (
        None
        if result.returncode == 0
        else (result.stderr.strip() or f"exit code {result.returncode}")
    )


def _scratch(config: SandboxConfig, uid_base: int, index: int) -> list[Any]:
    limits, uid = config.limits, uid_base + index
    options = (
        f"size={limits.scratch_mb}m,nr_inodes={limits.scratch_inodes},mode=0700,uid={uid},gid={uid}"
    )
    return [options, f"{INNER_BOX}/{index}"]


def spawn(command: list[str], place: Place, cwd: Path) -> subprocess.Popen[bytes]:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    try:
        with open(place.log, "wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        raise BoxError(f"could not start {command[0]}: {error}") from error


def end(process: subprocess.Popen[bytes] | None) -> None:
    """SIGTERM to `unshare` would leave its child to the kill signal it asked for; SIGKILL does just that."""
    if process is None:
        return
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)
