"""How every benchmark ends: one line of JSON with its figures, its goal and the machine it ran on."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The machine, and how busy it was: figures from a busy one say little."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "processor": _processor(),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def finish(name: str, figures: dict[str, Any], goal: str) -> None:
    """Print the JSON line of benchmark `name` and keep it."""
    record = {"name": name, **figures, "goal": goal, "machine": machine()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
