"""Checkpoints of an RL stage: complete or not there.

A checkpoint is written into a temporary directory, marked STABLE, synced and renamed into place. The marker
lists the files with their sizes and checksums of blocks spread over each, so that one which is incomplete,
truncated or overwritten is told without reading it all; it is skipped with a warning that names it and says
why. The newest few are kept, and what is older goes, sound or not.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

STABLE = "STABLE"
BLOCK_BYTES, BLOCKS = 64 << 10, 64  # of a file, checksummed; a file of up to 4 MiB is covered whole
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
        for leftover in (target, *self.directory.glob(".writing-*")):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        await write(temporary)
        (temporary / "trainer.json").write_text(json.dumps(asdict(state)))
        files = [path for path in temporary.rglob("*") if path.is_file()]
        marks = {str(path.relative_to(temporary)): _mark(path) for path in files}
        (temporary / STABLE).write_text(json.dumps(marks, indent=1))
        for path in (temporary, *temporary.rglob("*")):
            _sync(path)
        temporary.rename(target)
        _sync(self.directory)
        self._prune()
        return target

    def latest(self) -> tuple[TrainerState, Path] | None:
        """The newest sound checkpoint."""
        for path in sorted(self.directory.glob("step-*"), reverse=True):
            fault = _fault(path)
            if fault is None:
                return TrainerState(**json.loads((path / "trainer.json").read_text())), path
            log.warning("skipping the checkpoint %s: %s", path, fault)
        return None

    def _prune(self) -> None:
        found = sorted(self.directory.glob("step-*"))
        kept = [path for path in found if (path / STABLE).exists()][-self.keep :]
        for path in found:
            if path < kept[0]:
                shutil.rmtree(path)


def _mark(path: Path) -> list[int]:
    """[bytes, checksum of blocks from its first to its last]."""
    size = path.stat().st_size
    stride = max(BLOCK_BYTES, (size - BLOCK_BYTES) // (BLOCKS - 1))
    checksum = 0
    with path.open("rb") as file:
        for start in range(0, size, stride):
            file.seek(start)
            checksum = zlib.crc32(file.read(BLOCK_BYTES), checksum)
    return [size, checksum]


def _fault(directory: Path) -> str | None:
    """What is wrong with a checkpoint, if something is."""
    marker = directory / STABLE
    if not marker.exists():
        return f"it has no {STABLE} marker, so its writing never ended"
    try:
        marks: dict[str, list[int]] = json.loads(marker.read_text())
    except ValueError as error:
        return f"its {STABLE} marker is not readable ({error})"
    for name, (size, checksum) in marks.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
        if _mark(path) != [size, checksum]:
            return f"{name} has changed since it was written"
    return None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
