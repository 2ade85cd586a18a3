"""Which isolation can be had here. Never weaker than asked for, and never weaker than possible in silence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from sandbox import build
from sandbox.box import BoxError
from sandbox.config import Isolation, SandboxConfig
from sandbox.container import connect
from sandbox.errors import UserError
from sandbox.image.server import landlock, seccomp
from sandbox.namespace import namespaces_work

PROBE_TIMEOUT_S = 10.0


def resolve(config: SandboxConfig) -> Isolation:
    """The level to start at. UserError if the level asked for, or any at all, cannot be had."""
    if config.isolation != "auto":
        reason = _obstacle(config.isolation, config)
        if reason is not None:
            raise UserError(f"sandbox.isolation: {config.isolation} was asked for, but: {reason}")
        return config.isolation
    reasons: list[str] = []
    for level in get_args(Isolation):
        if level == "none":
            break
        reason = _obstacle(level, config)
        if reason is None:
            if level != "docker":
                _shout(f"code runs at isolation level {level}, not in Docker", reasons)
            chosen: Isolation = level
            return chosen
        reasons.append(f"{level}: {reason}")
    if not config.allow_unsafe:
        raise UserError(
            "nothing here can isolate the code that the model writes:\n  "
            + "\n  ".join(reasons)
            + "\nInstall "
            "Docker (sandbox/engine.sh), or accept unprotected runs with sandbox.allow_unsafe = true"
        )
    _shout("CODE RUNS UNPROTECTED (sandbox.allow_unsafe)", reasons)
    return "none"


def _obstacle(level: str, config: SandboxConfig) -> str | None:
    """Why `level` cannot be had; None if it can."""
    checks: dict[str, Callable[[], str | None]] = {
        "docker": lambda: _docker_obstacle(config),
        "ns-root": lambda: namespaces_work(level) if os.geteuid() == 0 else "needs root",
        "userns": lambda: namespaces_work(level),
        "landlock": _landlock_obstacle,
    }
    return checks[level]()


def _landlock_obstacle() -> str | None:
    version, needed = landlock.abi(), landlock.NEEDED_ABI
    if version < needed:
        return f"this kernel has Landlock ABI {version} (0: none), {needed} is needed (Linux 6.12)"
    if os.uname().machine not in seccomp.AUDIT_ARCH:
        return f"there is no seccomp filter for {os.uname().machine}"
    if not Path("/proc/thread-self/children").exists():
        return "this kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)"
    return None


def _docker_obstacle(config: SandboxConfig) -> str | None:
    try:
        build.ensure_image(connect(PROBE_TIMEOUT_S), config.image)
    except (BoxError, build.BuildError) as error:
        return str(error)
    return None


def _shout(headline: str, reasons: list[str]) -> None:
    bar = "!" * 100
    lines = "\n".join(f"!! {line}" for reason in reasons for line in reason.splitlines())
    print(f"{bar}\n!! WARNING: {headline}\n{lines}\n{bar}", file=sys.stderr, flush=True)
