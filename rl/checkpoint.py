"""Checkpoints of an RL stage: complete or not there.

A checkpoint is written into a temporary directory, synced, marked STABLE and renamed into place; a
directory without the marker is skipped with a warning that names it. The newest few are kept.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

STABLE = "STABLE"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerState:
    """What the trainer itself must remember, beside model, optimizer, schedule and RNG."""

    step: int  # steps done
    cursor: int  # problems taken from the pool
    weight_version: int


class Checkpoints:
    """The checkpoints under one directory."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory, self.keep = directory, keep
        directory.mkdir(parents=True, exist_ok=True)

    async def save(self, state: TrainerState, write: Callable[[Path], Awaitable[None]]) -> Path:
        """`write` puts everything else into the directory that it is given."""
        target = self.directory / f"step-{state.step:06d}"
        temporary = self.directory / f".writing-{state.step:06d}"
        for leftover in (temporary, target):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        await write(temporary)
        (temporary / "trainer.json").write_text(json.dumps(asdict(state)))
        (temporary / STABLE).touch()
        for path in temporary.rglob("*"):
            _sync(path)
        _sync(temporary)
        temporary.rename(target)
        _sync(self.directory)
        for old in self._stable()[: -self.keep]:
            shutil.rmtree(old)
        return target

    def latest(self) -> tuple[TrainerState, Path] | None:
        """The newest complete checkpoint."""
        for path in reversed(self._stable()):
            return TrainerState(**json.loads((path / "trainer.json").read_text())), path
        return None

    def _stable(self) -> list[Path]:
        found = sorted(self.directory.glob("step-*"))
        for path in found:
            if not (path / STABLE).exists():
                log.warning("skipping the incomplete checkpoint %s", path)
        return [path for path in found if (path / STABLE).exists()]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
