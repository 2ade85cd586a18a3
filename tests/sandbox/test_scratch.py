"""Emptying a scratch directory that a program has made hard to empty."""

from __future__ import annotations

import os
from pathlib import Path

from sandbox.image.server.slot import empty


def test_deep_tree_with_closed_directories(tmp_path: Path) -> None:
    start = Path.cwd()
    os.chdir(tmp_path)
    for _ in range(1500):  # far beyond PATH_MAX, and beyond the recursion limit
        Path("d").mkdir()
        Path("f").touch()
        os.chdir("d")
    os.chdir(start)
    (tmp_path / "d").chmod(0)
    empty(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_names_that_the_cleaner_itself_uses(tmp_path: Path) -> None:
    for name in (".moved-1", ".moved-2"):
        (tmp_path / name / "inner" / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / ".moved-3").touch()
    empty(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside, box = tmp_path / "outside", tmp_path / "box"
    (outside / "kept").mkdir(parents=True)
    box.mkdir()
    (box / "link").symlink_to(outside)
    (box / "dangling").symlink_to("/nowhere")
    os.mkfifo(box / "pipe")
    empty(str(box))
    assert list(box.iterdir()) == []
    assert (outside / "kept").is_dir()
