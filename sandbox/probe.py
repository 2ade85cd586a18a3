"""Which isolation can be had here. Never weaker than asked for, and never weaker than possible in silence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import get_args

from sandbox import build
from sandbox.box import BoxError
from sandbox.config import Isolation, SandboxConfig
from sandbox.container import connect
from sandbox.errors import UserError
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
        "landlock": lambda: "this level is not implemented",
    }
    return checks[level]()


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
