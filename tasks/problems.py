"""Problem files: JSON lines with `problem` and `answer` (and an optional `id`).

`question` is taken for `problem`, and case does not matter, so benchmark files can be used as they were
published. Invariant: ids are unique in a file, because results are kept by id.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl.trajectory import Problem
from sandbox.errors import UserError

EXPECTED = "expected JSON lines with the columns problem (or question) and answer"
NAMES = {"problem": ("problem", "question"), "answer": ("answer",)}


def read_problems(path: Path) -> list[Problem]:
    """All problems of a file. Raises `UserError` naming the file and row of what is wrong."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; {EXPECTED}")
    rows: dict[str, int] = {}  # id -> row
    problems = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            problem = _problem(f"{path}, row {number}", f"{path.stem}-{number}", line)
            if problem.id in rows:
                raise UserError(
                    f"{path}, row {number}: id {problem.id!r} is also the id of row {rows[problem.id]}"
                )
            rows[problem.id] = number
            problems.append(problem)
    if not problems:
        raise UserError(f"{path}: the file has no rows; {EXPECTED}")
    return problems


def _problem(where: str, default_id: str, line: bytes) -> Problem:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: not UTF-8 ({error.reason} at byte {error.start}); {EXPECTED}"
        ) from None
    except ValueError as error:  # an integer of thousands of digits is one too
        raise UserError(f"{where}: not valid JSON ({error}); {EXPECTED}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: a {type(row).__name__}, not an object; {EXPECTED}")
    row = {name.lower(): value for name, value in row.items()}
    found = {column: _text(where, row, column) for column in NAMES}
    missing = [column for column, text in found.items() if not text]
    if missing:
        raise UserError(
            f"{where}: {' and '.join(missing)} missing or empty; {EXPECTED}, found {', '.join(row) or 'no columns'}"
        )
    if "\n" in found["answer"]:
        raise UserError(
            f"{where}: the answer has several lines; expected the final answer alone, not a solution"
        )
    given = row.get("id")
    return Problem(
        default_id if given in (None, "") else str(given), found["problem"], found["answer"]
    )


def _text(where: str, row: dict[str, Any], column: str) -> str:
    """The column as text, "" if it is not there. Integer answers are often JSON numbers."""
    value = next((row[name] for name in NAMES[column] if row.get(name) is not None), "")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UserError(f"{where}: {column} is a {type(value).__name__}; expected text or a number")
    return str(value).strip()
