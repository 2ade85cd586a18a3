"""Which isolation can be had here. Never weaker than asked for, and never weaker than possible in silence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sandbox import bare, build, cgroup
from sandbox.box import BoxError
from sandbox.config import Isolation, SandboxConfig
from sandbox.container import connect
from sandbox.errors import UserError
from sandbox.image.server import landlock, seccomp
from sandbox.namespace import interpreter_dirs, namespaces_work

PROBE_TIMEOUT_S = 10.0


def resolve(config: SandboxConfig) -> Isolation:
    """The level to start at. UserError if the level asked for, or any at all, cannot be had."""
    if config.isolation != "auto":
        reason = obstacle(config.isolation, config)
        if reason is not None:
            raise UserError(f"sandbox.isolation: {config.isolation} was asked for, but: {reason}")
        return config.isolation
    reasons: list[str] = []
    for level in get_args(Isolation):
        if level == "none":
            break
        reason = obstacle(level, config)
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


@dataclass(frozen=True)
class Finding:
    """A level on this machine: why it cannot be had (None: it can), and what it leaves open."""

    level: Isolation
    obstacle: str | None
    not_promised: str


def survey() -> list[Finding]:
    """All levels, best first; builds no image."""
    findings = []
    for level in get_args(Isolation):
        reason = "only with allow_unsafe" if level == "none" else obstacle(level)
        findings.append(Finding(level, reason, _not_promised(level)))
    return findings


def table(findings: list[Finding]) -> str:
    """For people; `*` marks what isolation = auto takes."""
    lines = []
    chosen = next((one.level for one in findings if one.obstacle is None), None)
    for one in findings:
        mark = "*" if one.level == chosen else " "
        state = "available" if one.obstacle is None else "not available"
        lines.append(f"{mark} {one.level:<9} {state}")
        if one.obstacle is not None:
            lines += [f"            why: {line}" for line in one.obstacle.splitlines()]
        lines.append(f"            not promised: {one.not_promised}")
    return "\n".join(lines)


def _not_promised(level: Isolation) -> str:
    everywhere = "bugs of the kernel, side channels"
    match level:
        case "docker":
            return everywhere
        case "ns-root":
            reason = cgroup.obstacle() if os.geteuid() == 0 else None
            bound = "" if reason is None else f"memory and tasks of all calls together ({reason}), "
            return bound + everywhere
        case "userns":
            return f"memory and tasks of all calls together, {everywhere}"
        case "landlock":
            own = "calls have uids of their own" if bare.uids_possible() else "calls have your uid"
            return (
                "memory, tasks and scratch of all calls together, secrecy of file names, sizes and "
                f"process numbers ({own}), {everywhere}"
            )
        case "none":
            return "anything"


def obstacle(level: str, config: SandboxConfig | None = None) -> str | None:
    """Why `level` cannot be had; None if it can. With a config, Docker needs its image, which may be built."""
    checks: dict[str, Callable[[], str | None]] = {
        "docker": lambda: _docker_obstacle(config),
        "ns-root": lambda: namespaces_work(level) if os.geteuid() == 0 else "needs root",
        "userns": lambda: namespaces_work(level),
        "landlock": _landlock_obstacle,
    }
    try:
        if level != "docker":
            interpreter_dirs()
        return checks[level]()
    except (BoxError, build.BuildError) as error:
        return str(error)


def _landlock_obstacle() -> str | None:
    version, needed = landlock.abi(), landlock.NEEDED_ABI
    if version < needed:
        return f"this kernel has Landlock ABI {version} (0: none), {needed} is needed (Linux 6.12)"
    if os.uname().machine not in seccomp.AUDIT_ARCH:
        return f"there is no seccomp filter for {os.uname().machine}"
    if not Path("/proc/thread-self/children").exists():
        return "this kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)"
    return None


def _docker_obstacle(config: SandboxConfig | None) -> str | None:
    client = connect(PROBE_TIMEOUT_S)
    if config is not None:
        build.ensure_image(client, config.image)
    return None


def _shout(headline: str, reasons: list[str]) -> None:
    bar = "!" * 100
    lines = "\n".join(f"!! {line}" for reason in reasons for line in reason.splitlines())
    print(f"{bar}\n!! WARNING: {headline}\n{lines}\n{bar}", file=sys.stderr, flush=True)
