"""The soak of `benchmarks.sandbox` alone: 45,000 calls outstanding, none lost, none wrong, nothing grows.

python -m benchmarks.sandbox_soak
"""

from __future__ import annotations

import asyncio

from benchmarks.outcome import finish
from benchmarks.sandbox import measure
from benchmarks.sandboxes.columns import Columns
from benchmarks.sandboxes.plan import FULL
from sandbox.config import SandboxConfig


def main() -> None:
    figures = asyncio.run(measure(SandboxConfig(), Columns(), ["soak"], FULL))
    finish(
        "sandbox_soak",
        figures,
        "none lost, none wrong, no growth of processes, files, scratch or memory",
    )


if __name__ == "__main__":
    main()
