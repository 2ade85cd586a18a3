"""The conformance suite itself: its list, its judge, its table."""

from __future__ import annotations

import ast
import json
from dataclasses import replace

import pytest

from sandbox.errors import UserError
from sandbox.outcome import Outcome, Status
from sandbox.selfcheck.command import chosen
from sandbox.selfcheck.judge import broken
from sandbox.selfcheck.model import PATIENT, Program
from sandbox.selfcheck.programs import PROGRAMS, THEMES
from sandbox.selfcheck.runner import State, Verdict
from sandbox.selfcheck.table import as_json, table

HELLO = Program("hello", "hello is said", "print('hello')", stdout="hello\n", exit_code=0)
SAID = Outcome(Status.OK, exit_code=0, stdout="hello\n", isolation="docker")


def test_the_list_is_long_and_its_names_are_unique() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(names) == len(set(names)) >= 90
    assert all(THEMES.values())


def test_docker_promises_everything() -> None:
    assert [program.name for program in PROGRAMS if "docker" in program.not_on] == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_program_can_fail(program: Program) -> None:
    assert program.holds
    assert Status.SANDBOX_ERROR not in program.status
    assert broken(program, Outcome(Status.SANDBOX_ERROR), "docker")
    assert all(program.not_on.values()), "each level that lacks it has a reason"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_that_should_compile_does(program: Program) -> None:
    """A typo in a hostile program would look like a sandbox that holds."""
    if "SyntaxError" in program.stderr_has or program.name.startswith(
        ("source-", "syntax", "indent")
    ):
        return
    ast.parse(program.code)
    if program.look is not None:
        ast.parse(program.look.code)


def test_a_kept_promise_has_no_complaints() -> None:
    assert broken(HELLO, SAID, "docker") == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"status": Status.ERROR, "stderr": "no"}, "status error, expected ok"),
        ({"stdout": "hi\n"}, "stdout 'hi\\n', expected 'hello\\n'"),
        ({"exit_code": 3}, "exit_code 3, expected 0"),
        ({"isolation": "none"}, "isolation none"),
        ({"wall_s": PATIENT.wall_s + 9}, "ended after 69.0 s, the limit is 60 s"),
        ({"stderr": 'File "/opt/sandbox/server/zygote.py"'}, "the service shows"),
        ({"stderr": "x" * 10**6}, "stderr has 1000000 bytes"),
    ],
)
def test_a_broken_promise_is_told(changes: dict[str, object], complaint: str) -> None:
    found = broken(HELLO, replace(SAID, **changes), "docker")
    assert len(found) == 1
    assert complaint in found[0]


def test_programs_are_chosen_by_name() -> None:
    assert chosen(None) == list(PROGRAMS)
    assert {program.name for program in chosen(["exit-3", "network-*"])} > {"exit-3", "network-tcp"}
    with pytest.raises(UserError, match=r"--only exit-33.*exit-3,"):
        chosen(["exit-33"])


def test_table_and_json_name_what_is_broken() -> None:
    by_name = {program.name: program for program in PROGRAMS}
    verdicts = [
        Verdict(by_name["fork-bomb"], State.HELD, outcome=SAID),
        Verdict(by_name["disk-full"], State.NOT_PROMISED, "no quota"),
        Verdict(by_name["ptrace"], State.BROKEN, "it could", SAID),
    ]
    text = table("landlock", verdicts)
    assert "not promised here: no quota" in text
    assert "BREAKS 1 OF ITS PROMISES: ptrace" in text
    data = json.loads(json.dumps(as_json("landlock", verdicts)))
    assert data["broken"] == 1
    assert [one["state"] for one in data["programs"]] == ["held", "not promised here", "NOT HELD"]
    assert "holds everything" in table("landlock", verdicts[:2])
