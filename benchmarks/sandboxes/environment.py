"""Interpreters for the peers: a bare environment with the sandbox's wheels for programs, another for services.

Programs see the same wheels as in the sandbox's image and nothing else: no pip, no .pth file, so that a fresh
interpreter starts as fast as it can.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from sandbox.build import REQUIREMENTS, download_wheels
from sandbox.errors import UserError

SERVICE_REQUIREMENTS = Path(__file__).parent / "peers" / "requirements.txt"


def programs_python(version: str) -> Path:
    """An interpreter of `version` (as "3.11"), or of this one's where that is not installed, with the
    sandbox's wheels."""
    base = shutil.which(f"python{version}") or sys.executable
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        base = str(Path(sys.base_prefix, "bin", f"python{version}"))
    found = subprocess.run(
        [base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    if not found:
        base, found = sys.executable, f"{sys.version_info.major}.{sys.version_info.minor}"
    wheels = download_wheels(found)
    return _environment(
        base, REQUIREMENTS, ["--no-index", "--find-links", str(wheels)], f"programs-{found}"
    )


def service_python() -> Path:
    """An interpreter with what code-judge's way of working needs."""
    return _environment(sys.executable, SERVICE_REQUIREMENTS, [], "service")


def _environment(base: str, requirements: Path, pip: list[str], name: str) -> Path:
    key = hashlib.sha256(requirements.read_bytes() + base.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rstar2"
    final = cache / f"bench-{name}-{key}"
    python, whole = final / "bin" / "python", final / "whole"
    if not whole.is_file():
        shutil.rmtree(final, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        _command([base, "-m", "venv", "--without-pip", str(final)])
        pip_install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        _command([*pip_install, *pip, "-r", str(requirements)])
        whole.touch()
    return python


def _command(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise UserError(
            f"{' '.join(command)} failed:\n{(result.stderr or result.stdout).strip()[-2000:]}"
        )
