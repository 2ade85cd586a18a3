"""Cells: state by replay, heard once, and errors that belong to the cell that made them."""

from __future__ import annotations

import pytest

from sandbox.client import SandboxClient
from sandbox.config import Limits
from sandbox.image.server import cells
from sandbox.outcome import Outcome, Status


async def run(client: SandboxClient, *sources: str, stdin: str = "") -> Outcome:
    """The outcome of the last of `sources` after the others."""
    *history, code = sources
    return await client.run(code, stdin, Limits(wall_s=20), mode="cell", history=history)


@pytest.mark.parametrize(
    ("sources", "stdout"),
    [
        (("x = 20", "x += 1", "x * 2"), "42\n"),
        (("import math\ndef f(): return math.pi", "f()"), "3.141592653589793\n"),
        (("1 + 1\n2 + 2",), "4\n"),
        (("print(1); 5",), "1\n5\n"),
        (("None",), ""),
        (("x = 3",), ""),
        (("",), ""),
        (("# nothing",), ""),
        (("'a'", "_ * 3"), "'aaa'\n"),
        (("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int", "P(1)"), "P(x=1)\n"),
        (("import pickle\nclass A: pass", "type(pickle.loads(pickle.dumps(A()))).__name__"), "'A'\n"),
        (("def f():\n    return 1", "import inspect\nprint(inspect.getsource(f))"), "def f():\n    return 1\n\n"),
        (("from sympy import Symbol", "Symbol('x') ** 2"), "x**2\n"),
        (("__name__",), "'__main__'\n"),
    ],
)  # fmt: skip
async def test_a_cell_goes_on_where_the_last_one_ended(
    client: SandboxClient, sources: tuple[str, ...], stdout: str
) -> None:
    outcome = await run(client, *sources)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (Status.OK, stdout, "")


@pytest.mark.parametrize(
    ("source", "echoed"),
    [
        ("1", True),
        ("1;", False),
        ("1 ;  # c", False),
        ("1 \\\n;", False),
        ("1  # c;", True),
        ("(1\n)  # ;", True),
        ("'é;' * 3;", False),
        ("'é;' * 3", True),
        ("a\r\nb;", False),
        ("a\rb", True),
        ("'\x0c\u2028'\nb;", False),
        ("if 1: 2", False),
        ("x = 1", False),
        ("x: int", False),
    ],
)
def test_a_semicolon_prevents_the_echo(source: str, echoed: bool) -> None:
    _, last = cells._compile(source, 1)
    assert bool(last.co_names or last.co_consts != (None,)) is echoed


async def test_earlier_cells_are_not_heard(client: SandboxClient) -> None:
    loud = (
        "import ctypes, os, subprocess, sys, warnings\nprint('p'); print('e', file=sys.stderr)\n"
        "os.system('echo shell; echo shell >&2'); subprocess.run(['echo', 'run'])\n"
        "os.write(1, b'raw'); ctypes.CDLL(None).printf(b'c')\nwarnings.warn('w')\n'value'"
    )
    outcome = await run(client, loud, loud, "print('here')")
    assert (outcome.stdout, outcome.stderr) == ("here\n", "")
    aloud = await run(client, loud)
    words = {"p", "shell", "run", "raw", "c", "'value'"}
    assert {word for word in words if word in aloud.stdout} == words


async def test_an_error_of_an_earlier_cell_is_reported_and_ends_that_cell_only(
    client: SandboxClient,
) -> None:
    outcome = await run(
        client,
        "x = 1\nraise ValueError('no\\nand more')\nx = 2",
        "x = = 1",
        "def f(): raise KeyError('k')",
        "f()",
        "b'x' * (8 << 30)",
        "x",
    )
    assert (outcome.status, outcome.stdout) == (Status.OK, "1\n")
    assert outcome.stderr.splitlines() == [
        "replay: cell 1: ValueError: no and more",
        "replay: cell 2: SyntaxError: invalid syntax",
        "replay: cell 4: KeyError: 'k'",
        "replay: cell 5: MemoryError",
    ]


async def test_the_report_of_a_replay_is_bounded(client: SandboxClient) -> None:
    outcome = await run(client, *["raise ValueError('x' * 10**6)"] * 100, "1")
    assert outcome.stdout == "1\n"
    assert len(outcome.stderr) == cells.MAX_REPORT
    assert max(map(len, outcome.stderr.splitlines())) < cells.MAX_ERROR + 30


async def test_nothing_runs_twice(client: SandboxClient) -> None:
    append = "open('log', 'a').write('{}'){}"
    failing = "def f():\n    open('log', 'a').write('c')\n    raise ValueError('no')\nf()"
    outcome = await run(
        client, append.format("a", ";"), append.format("b", ""), failing, "open('log').read()"
    )
    assert outcome.stdout == "'abc'\n"
    outcome = await run(client, "def f():\n    print('ran')\n    raise ValueError('no')\nf()")
    assert (outcome.status, outcome.stdout) == (Status.ERROR, "ran\n")


async def test_a_traceback_shows_the_lines_of_its_cells(client: SandboxClient) -> None:
    outcome = await run(
        client,
        "def f(x):\n    return 1 / x",
        "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    raise ValueError('no') from error",
        "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    raise ValueError('no') from error",
    )
    assert outcome.exit_code == 1
    lines = [line for line in outcome.stderr.splitlines() if "^" not in line]
    assert lines == [
        "replay: cell 2: ValueError: no",
        "Traceback (most recent call last):",
        "  Cell 3, line 2, in <module>",
        "    f(0)",
        "  Cell 1, line 2, in f",
        "    return 1 / x",
        "ZeroDivisionError: division by zero",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        "  Cell 3, line 4, in <module>",
        "    raise ValueError('no') from error",
        "ValueError: no",
    ]


async def test_a_repr_that_fails_is_shown(client: SandboxClient) -> None:
    outcome = await run(client, "class A:\n    def __repr__(self): return str(1 / 0)", "A()")
    assert outcome.status is Status.ERROR
    assert outcome.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "Cell 1, line 2, in __repr__" in outcome.stderr


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("open('log', 'w').close(); print('ran')\nx = = 1", "SyntaxError: invalid syntax"),
        ("print('ran')\nreturn 3", "SyntaxError: 'return' outside function"),
        ("%matplotlib inline", "SyntaxError: invalid syntax"),
        ("!ls", "SyntaxError: invalid syntax"),
        ("'\ud800'", "surrogates not allowed"),
    ],
)
async def test_a_cell_that_does_not_compile_does_not_run(
    client: SandboxClient, code: str, line: str
) -> None:
    outcome = await run(client, "raise ValueError('not replayed')", code)
    assert (outcome.status, outcome.stdout) == (Status.ERROR, "")
    assert line in outcome.stderr
    assert "replay" not in outcome.stderr
    assert "/" not in outcome.stderr  # no file of ours


@pytest.mark.parametrize("leave", ["raise SystemExit(3)", "exit(3)", "import os\nos._exit(3)"])
async def test_an_exit_ends_an_earlier_cell_and_the_last_call(
    client: SandboxClient, leave: str
) -> None:
    outcome = await run(client, f"x = 1\n{leave}\nx = 2", "x")
    assert (outcome.status, outcome.stdout) == (Status.OK, "1\n")
    assert outcome.stderr == "replay: cell 1: SystemExit: 3\n"
    assert (await run(client, "x = 1", f"{leave}\nx = 2")).exit_code == 3


async def test_a_clean_exit_of_an_earlier_cell_is_no_error(client: SandboxClient) -> None:
    assert (await run(client, "import sys; sys.exit()", "1")).stderr == ""


async def test_a_process_that_a_cell_forked_does_not_run_the_next(client: SandboxClient) -> None:
    outcome = await run(
        client,
        "import os\npid = os.fork()\nif pid == 0: print('child')",
        "os.waitpid(pid, 0)[1]",
        "print(os.waitpid(-1, os.WNOHANG)) if False else print('once')",
    )
    assert (outcome.stdout, outcome.stderr) == ("once\n", "")


async def test_a_replay_draws_the_same_random_numbers(client: SandboxClient) -> None:
    named = "import random, numpy\nrandom.random(), float(numpy.random.rand())"
    unnamed = "from scipy.stats import norm\nfloat(norm.rvs())"
    for first in (named, unnamed):
        drawn = (await run(client, first)).stdout
        assert [(await run(client, first, "_")).stdout for _ in range(3)] == [drawn] * 3
    other = (await run(client, "# another\n" + unnamed)).stdout
    assert other != (await run(client, unnamed)).stdout


async def test_input_belongs_to_the_last_cell(client: SandboxClient) -> None:
    outcome = await run(client, "input()", "input()", stdin="mine\n")
    assert outcome.stdout == "'mine'\n"
    assert outcome.stderr == "replay: cell 1: EOFError: EOF when reading a line\n"


async def test_streams_that_a_cell_replaced_stay_replaced(client: SandboxClient) -> None:
    replace = "import io, sys\nprint('lost')\nsys.stdout = io.StringIO()\nprint('kept')"
    outcome = await run(client, replace, "sys.__stdout__.write(sys.stdout.getvalue());")
    assert outcome.stdout == "kept\n"


@pytest.mark.parametrize(
    ("earlier", "limits", "status", "line"),
    [
        (
            "while True: pass",
            Limits(cpu_s=1, wall_s=60),
            Status.CPU_LIMIT,
            "the CPU time limit was met while it ran again",
        ),
        (
            "import time\ntime.sleep(60)",
            Limits(wall_s=1),
            Status.TIMEOUT,
            "the time limit was met while it ran again",
        ),
    ],
)
async def test_the_limits_hold_for_the_replay_too(
    client: SandboxClient, earlier: str, limits: Limits, status: Status, line: str
) -> None:
    outcome = await client.run("1", limits=limits, mode="cell", history=["1", earlier])
    assert (outcome.status, outcome.stdout) == (status, "")
    assert outcome.stderr == f"replay: cell 2: {line}\n"


async def test_a_script_keeps_what_c_code_has_written(client: SandboxClient) -> None:
    outcome = await client.run("import ctypes\nctypes.CDLL(None).printf(b'from C')")
    assert outcome.stdout == "from C"


async def test_a_script_keeps_what_went_past_its_replaced_stream(client: SandboxClient) -> None:
    outcome = await client.run("import sys\nsys.stdout = None\nsys.__stdout__.write('out')")
    assert (outcome.status, outcome.stdout) == (Status.OK, "out")
