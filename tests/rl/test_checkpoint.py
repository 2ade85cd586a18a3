from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from rl.checkpoint import Checkpoints, TrainerState


async def save(store: Checkpoints, step: int) -> Path:
    async def write(directory: Path) -> None:
        (directory / "weights").write_text(f"weights of {step}")

    return await store.save(TrainerState(step, step * 8, step), write)


async def test_latest_is_the_newest_and_old_ones_go(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    assert store.latest() is None
    for step in (5, 10, 100):
        await save(store, step)
    state, path = store.latest()
    assert state == TrainerState(100, 800, 100)
    assert (path / "weights").read_text() == "weights of 100"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000010", "step-000100"]


async def test_an_incomplete_checkpoint_is_skipped_and_named(tmp_path, caplog):
    store = Checkpoints(tmp_path, keep=2)
    await save(store, 5)
    (await save(store, 10) / "STABLE").unlink()
    with caplog.at_level(logging.WARNING):
        state, _ = store.latest()
    assert state.step == 5
    assert "step-000010" in caplog.text


async def test_a_failed_write_leaves_the_last_one(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    await save(store, 5)

    async def broken(directory: Path) -> None:
        (directory / "weights").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await store.save(TrainerState(10, 80, 10), broken)
    assert store.latest()[0].step == 5
    await save(store, 10)
    assert store.latest()[0].step == 10


def _save_for_ever(directory: Path) -> None:
    import asyncio

    async def loop() -> None:
        store = Checkpoints(directory, keep=2)
        for step in range(1, 1_000_000):
            await save(store, step)

    asyncio.run(loop())


def test_killed_at_any_moment_there_is_a_whole_one(tmp_path):
    for attempt in range(5):
        directory = tmp_path / str(attempt)
        process = multiprocessing.get_context("spawn").Process(target=_save_for_ever, args=(directory,))
        process.start()
        while not list(directory.glob("step-*")):
            time.sleep(0.01)
        time.sleep(0.013 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        state, path = Checkpoints(directory, keep=2).latest()
        assert (path / "weights").read_text() == f"weights of {state.step}"
