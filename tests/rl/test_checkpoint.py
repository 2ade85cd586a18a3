from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from rl.checkpoint import Checkpoints, TrainerState

LARGE_BYTES = 5 << 20  # more than is checksummed whole


async def save(store: Checkpoints, step: int) -> Path:
    async def write(directory: Path) -> None:
        (directory / "weights").write_text(f"weights of {step}")
        (directory / "large").write_bytes(b"1" * LARGE_BYTES)

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


def unmark(path: Path) -> None:
    (path / "STABLE").unlink()


def truncate(path: Path) -> None:
    with (path / "weights").open("r+b") as file:
        file.truncate(3)


def lose(path: Path) -> None:
    (path / "weights").unlink()


def zero_the_end(path: Path) -> None:
    with (path / "large").open("r+b") as file:
        file.seek(LARGE_BYTES - 4096)
        file.write(bytes(4096))


def garble_the_state(path: Path) -> None:
    content = (path / "trainer.json").read_text()
    (path / "trainer.json").write_text(content.replace("{", "["))


def garble_the_marker(path: Path) -> None:
    (path / "STABLE").write_text("")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (unmark, "no STABLE marker"),
        (truncate, "weights has 3 bytes, not 13"),
        (lose, "weights is missing"),
        (zero_the_end, "large has changed"),
        (garble_the_state, "trainer.json has changed"),
        (garble_the_marker, "marker is not readable"),
    ],
)
async def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, caplog, damage, said):
    store = Checkpoints(tmp_path, keep=2)
    await save(store, 5)
    damage(await save(store, 10))
    with caplog.at_level(logging.WARNING):
        state, path = store.latest()
    assert state.step == 5 and path.name == "step-000005"
    assert "step-000010" in caplog.text and said in caplog.text


async def test_leftovers_of_a_killed_writer_and_damaged_old_ones_go(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    unmark(await save(store, 5))
    (tmp_path / ".writing-000007").mkdir()
    await save(store, 10)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000010"]


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
        process = multiprocessing.get_context("spawn").Process(
            target=_save_for_ever, args=(directory,)
        )
        process.start()
        while not list(directory.glob("step-*")):
            time.sleep(0.01)
        time.sleep(0.013 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        state, path = Checkpoints(directory, keep=2).latest()
        assert (path / "weights").read_text() == f"weights of {state.step}"
