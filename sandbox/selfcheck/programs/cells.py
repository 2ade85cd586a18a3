"""Cells: programs with a history, which is run again, unheard, to make the state that they go on from."""

from __future__ import annotations

from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.selfcheck.model import CONTAINED, ERROR, OK, OUT_OF_TIME, Look, Program


def cell(
    name: str,
    holds: str,
    *sources: str,
    status: tuple[Status, ...] = OK,
    stdout: str | None = None,
    stderr: str | None = None,
    stderr_has: tuple[str, ...] = (),
    stdin: str = "",
    limits: Limits = Limits(cpu_s=4, wall_s=60),
    look: Look | None = None,
) -> Program:
    """The last of `sources` after the others."""
    *history, code = sources
    return Program(
        name,
        holds,
        code,
        status,
        stdout,
        stderr=stderr,
        stderr_has=stderr_has,
        stdin=stdin,
        limits=limits,
        mode="cell",
        history=tuple(history),
        look=look,
    )


PROGRAMS = (
    cell(
        "cell-state",
        "a cell goes on where the one before ended",
        "import math\nx = 20",
        "def f(y):\n    return x + y",
        "x += 1\nprint(f(21), math.pi > 3)",
        stdout="42 True\n",
        stderr="",
    ),
    cell(
        "cell-echo",
        "the last expression of the last cell is shown, and no other",
        "'not this'",
        "1 + 1\n[2 + 2]",
        stdout="[4]\n",
    ),
    cell(
        "cell-echo-of-none", "None is not shown, nor what a semicolon ends", "1;", "None", stdout=""
    ),
    cell("cell-silent", "a semicolon prevents the echo", "6 * 7;", stdout=""),
    cell(
        "cell-earlier-output",
        "earlier cells are not heard again: neither Python nor C nor child processes",
        "import os, sys\nprint('loud'); os.write(1, b'loud'); os.system('echo loud; echo loud >&2')\n"
        "print('loud', file=sys.stderr)",
        "print('quiet')",
        stdout="quiet\n",
        stderr="",
    ),
    cell(
        "cell-earlier-error",
        "an error of an earlier cell is reported and ends that cell only",
        "x = 1\nraise ValueError('no')\nx = 2",
        "y = = 1",
        "x",
        stdout="1\n",
        stderr_has=("cell 1: ValueError: no", "cell 2: SyntaxError"),
    ),
    cell(
        "cell-once",
        "no cell and no expression is executed twice",
        "open('log', 'a').write('a')",
        "def f():\n    open('log', 'a').write('b')\n    raise ValueError('no')\nf()",
        "print(open('log').read())",
        stdout="ab\n",
    ),
    cell(
        "cell-failing-expression-once",
        "a last expression that fails is not executed again",
        "def f():\n    print('ran')\n    raise ValueError('no')\nf()",
        status=ERROR,
        stdout="ran\n",
        stderr_has=("ValueError: no",),
    ),
    cell(
        "cell-traceback",
        "a traceback names the cell and its line",
        "def f():\n    return 1 / 0",
        "# a line\nf()",
        status=ERROR,
        stderr_has=("Cell 1", "line 2, in f", "Cell 2", "ZeroDivisionError"),
    ),
    cell(
        "cell-syntax-error",
        "a cell that does not compile does nothing",
        "open('mark', 'w').close()",
        "print('half')\nx = = 1",
        status=ERROR,
        stdout="",
        stderr_has=("SyntaxError",),
    ),
    cell(
        "cell-input",
        "the input is the last cell's",
        "try:\n    first = input()\nexcept EOFError:\n    first = None",
        "print(first, input())",
        stdin="line\n",
        stdout="None line\n",
    ),
    cell(
        "cell-earlier-exit",
        "an earlier cell that exits ends itself only",
        "x = 1\nimport sys; sys.exit(3)",
        "import os; os._exit(4)",
        "x",
        stdout="1\n",
    ),
    cell(
        "cell-exit", "in the last one it is the call's end", "import sys; sys.exit(3)", status=ERROR
    ),
    cell(
        "cell-earlier-endless",
        "a replay that does not end meets the limits, and says which cell it was",
        "x = 1",
        "while True: pass",
        "print('never')",
        status=OUT_OF_TIME,
        stdout="",
        stderr_has=("cell 2",),
        limits=Limits(cpu_s=1, wall_s=20),
    ),
    cell(
        "cell-earlier-fork",
        "a child that an earlier cell forked does not run the later ones",
        "import os\npid = os.fork()\nif pid: os.wait()",
        "print('once')",
        stdout="once\n",
    ),
    cell(
        "cell-earlier-streams-closed",
        "an earlier cell that closes everything does no harm to the service",
        "import os, sys\nsys.stdout.close()\nos.closerange(0, 50)",
        "print('here')",
        status=CONTAINED,
    ),
    cell(
        "cell-memory",
        "an earlier MemoryError is that cell's error",
        "x = 1\nb'x' * (8 << 30)",
        "x",
        stdout="1\n",
        stderr_has=("cell 1: MemoryError",),
    ),
    cell(
        "cell-async-and-classes",
        "classes of earlier cells can be pickled, and loops run",
        "import asyncio, pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int",
        "async def f():\n    return pickle.loads(pickle.dumps(P(3)))\nasyncio.run(f())",
        stdout="P(x=3)\n",
    ),
    cell(
        "cell-random",
        "a replay draws what the first run drew",
        "import random\na = random.random()",
        "random.seed(); b = random.random()",
        "import random as r\nprint(0 <= a < 1, a != b)",
        stdout="True True\n",
    ),
    cell(
        "cell-leaves-nothing",
        "state lives in the history alone: the next call knows nothing",
        "left = 1\nopen('left', 'w').close()\nimport builtins; builtins.left = 1",
        look=Look(
            "import os\nprint('left' in dir(), hasattr(__builtins__, 'left'), os.listdir('.'))",
            "False False []\n",
        ),
    ),
)
