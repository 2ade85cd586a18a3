"""Problem files as people have them: column names, number answers, and every fault named by file and row."""

import json
from pathlib import Path

import pytest

from rl.trajectory import Problem
from sandbox.errors import UserError
from tasks.problems import read_problems

AIME = Path(__file__).parents[3] / "shared/data/eval/aime24.jsonl"


def file(tmp_path: Path, *rows: object, name: str = "aime.jsonl") -> Path:
    path = tmp_path / name
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def test_usual_columns(tmp_path: Path) -> None:
    path = file(tmp_path, {"id": "I-1", "problem": "1 + 1?", "answer": "2", "source": "school"})
    assert read_problems(path) == [Problem("I-1", "1 + 1?", "2")]


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"problem": "p", "answer": 204}, "204"),
        ({"question": "p", "answer": " 073 "}, "073"),
        ({"Question": "p", "Answer": 0}, "0"),
        ({"Problem": "p", "answer": 0.5}, "0.5"),
        ({"id": None, "problem": "p", "answer": "\\frac{1}{2}"}, "\\frac{1}{2}"),
    ],
)
def test_other_names_and_number_answers(
    tmp_path: Path, row: dict[str, object], answer: str
) -> None:
    assert read_problems(file(tmp_path, row)) == [Problem("aime-1", "p", answer)]


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + b'{"problem": "p", "answer": 1}\n\n{"problem": "q", "answer": 2}\n'
    )
    assert [problem.id for problem in read_problems(path)] == ["set-1", "set-3"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"problem": "p"', "not valid JSON"),
        ("[1, 2]", "a list, not an object"),
        ('{"problem": "p"}', "answer missing or empty; .*found problem"),
        ('{"problem": "", "answer": null}', "problem and answer missing or empty"),
        ('{"problem": "p", "answer": ["1", "2"]}', "answer is a list; expected text or a number"),
        ('{"problem": "p", "answer": true}', "answer is a bool"),
        ('{"problem": "p", "answer": ' + "9" * 5000 + "}", "not valid JSON"),
        (
            json.dumps({"problem": "p", "answer": "16 - 3 = 13\n#### 13"}),
            "the answer has several lines",
        ),
        ('{"id": "a", "problem": "p", "answer": 1}', "id 'a' is also the id of row 1"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: str, says: str) -> None:
    path = file(tmp_path, {"id": "a", "problem": "p", "answer": 1}, bad)
    with pytest.raises(UserError, match=f"aime.jsonl, row 2: .*{says}"):
        read_problems(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "zip.jsonl"
    path.write_bytes(b"PK\x03\x04\xff\xfe\n")
    with pytest.raises(UserError, match=r"zip.jsonl, row 1: not UTF-8"):
        read_problems(path)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.jsonl: no such file"):
        read_problems(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match=r"empty.jsonl: the file has no rows"):
        read_problems(file(tmp_path, "", name="empty.jsonl"))


@pytest.mark.skipif(not AIME.is_file(), reason="the shared test data is not beside this checkout")
def test_a_real_benchmark_file() -> None:
    problems = read_problems(AIME)
    assert len(problems) == 30
    assert all(0 <= int(problem.answer) <= 999 for problem in problems)
