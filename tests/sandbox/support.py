"""Starting sandboxes in tests: `level_obstacle()` says why a level cannot be tested here."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import pytest

from sandbox.config import Limits, SandboxConfig
from sandbox.container import LABEL, connect
from sandbox.errors import InfrastructureError, UserError
from sandbox.probe import resolve
from sandbox.service import Sandbox

QUICK = Limits(cpu_s=2, wall_s=20)


@functools.cache
def level_obstacle(level: str) -> str | None:
    """Why this machine cannot run `level`; None if it can."""
    try:
        resolve(SandboxConfig.model_validate({"isolation": level}))
    except (UserError, InfrastructureError) as error:
        return str(error)
    return None


def need(level: str) -> None:
    """Skip the test, with the reason, where `level` cannot be had."""
    reason = level_obstacle(level)
    if reason is not None:
        pytest.skip(reason)


@contextmanager
def sandbox_at(level: str, **settings: object) -> Iterator[Sandbox]:
    """A sandbox at `level`, or a skipped test with the reason."""
    need(level)
    with Sandbox.start(SandboxConfig.model_validate({"isolation": level, **settings})) as sandbox:
        yield sandbox


def containers_of(pid: int) -> list[docker.models.containers.Container]:
    """The containers that the process `pid` owns."""
    found = connect().containers.list(all=True, filters={"label": LABEL})
    return [container for container in found if container.labels[LABEL].split()[2] == str(pid)]


def children_of(pid: int) -> list[int]:
    output = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout
    return [int(word) for word in output.split()]


def dispatchers_of(sandbox: Sandbox) -> list[int]:
    """Of a sandbox at level ns-root."""
    (unshare,) = children_of(sandbox.gateway_pid)
    (pid1,) = children_of(unshare)
    return children_of(pid1)
