"""Problem files: JSON lines with `problem` and `answer` (and an optional `id`)."""

from __future__ import annotations

import json
from pathlib import Path

from rl.trajectory import Problem
from sandbox.errors import UserError


def read_problems(path: Path) -> list[Problem]:
    """All problems of a file. Raises `UserError` naming the file and row of what is wrong."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected JSON lines with the columns problem and answer")
    problems = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                problems.append(_problem(path, number, line))
    if not problems:
        raise UserError(f"{path}: the file has no rows; expected JSON lines with the columns problem and answer")
    return problems


def _problem(path: Path, number: int, line: str) -> Problem:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, row {number}: not valid JSON ({error})") from error
    missing = [name for name in ("problem", "answer") if not isinstance(row, dict) or row.get(name) in (None, "")]
    if missing:
        raise UserError(f"{path}, row {number}: {' and '.join(missing)} missing or empty")
    return Problem(str(row.get("id", f"{path.stem}-{number}")), str(row["problem"]), str(row["answer"]))
