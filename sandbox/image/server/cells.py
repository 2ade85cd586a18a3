"""A cell with the state of the cells before it, which is made by running those again: `jupyter_code`.

All cells run in one namespace, in order. Earlier ones run unheard (nothing that they, their subprocesses or
C code write goes anywhere) and read no input; an error in one ends that cell only, keeps the state up to it,
and is reported by a line on stderr before the last cell starts. Then the last cell runs aloud. In each the
last expression is evaluated once, as a statement of the interactive interpreter, so its value is echoed by
`sys.displayhook`; a semicolon behind it prevents that. A cell is compiled as a whole before any of it runs,
and alone: a `__future__` import holds for its own cell.

The limits hold for the replay and the last cell together. What cells draw from `random` and from numpy's
global generator is seeded by the first cell's text, so that a replay draws what the first run drew. A
SystemExit or `os._exit` ends an earlier cell only; in the last one it ends the call, as in a script. A
process that an earlier cell forked ends with that cell.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import random
import re
import signal
import sys
import traceback
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from . import linux

MAX_REPORT = 4096  # bytes of all replay errors
MAX_ERROR = 200  # characters of one
LINE_END = re.compile(r"\r\n?|\n")
SEMICOLON = re.compile(r"[\s\\]*;")  # behind an expression; a line may be continued before it

_silence: Silence | None = None  # while earlier cells run


def run(program: bytes, module: ModuleType) -> None:
    """Run the last cell of `program` on the state of those before it. Raises what the last cell raises."""
    global _silence
    given = json.loads(program)
    history, code = given["history"], given["code"]
    last = _compile(code, len(history) + 1)  # an error here makes the replay pointless
    _seed([*history, code][0])
    if history:
        _silence = Silence()
        errors = _replay(history, module.__dict__, _silence)
        _silence.end()
        _silence = None
        os.write(2, "".join(errors).encode("utf-8", "backslashreplace")[:MAX_REPORT])
    _run(last, module.__dict__)


def speak_of_limit(number: int) -> None:
    """A limit was met; if an earlier cell was running again, say so where it is heard."""
    if _silence is None or _silence.pid != os.getpid():
        return
    _silence.end()
    which = "CPU time" if number == signal.SIGXCPU else "time"
    line = f"replay: cell {_silence.cell}: the {which} limit was met while it ran again\n"
    os.write(2, line.encode())


class Silence:
    """Until `end`, the standard streams lead nowhere, and `os._exit` ends just the cell that calls it."""

    def __init__(self) -> None:
        self.cell = 0  # the one that runs
        self.pid = os.getpid()
        self.leave = os._exit
        self._on = True
        self._streams = (sys.stdout, sys.stderr)
        self._kept = [os.dup(fd) for fd in range(3)]
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(nowhere, fd)
        os.close(nowhere)
        os._exit = self._leave_cell  # type: ignore[assignment]

    def _leave_cell(self, status: int) -> None:
        if self._on and os.getpid() == self.pid:
            raise SystemExit(status)
        self.leave(status)

    def end(self) -> None:
        for stream in (*self._streams, sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        linux.flush_c_streams()
        self._on = False
        os._exit = self.leave
        for fd, kept in enumerate(self._kept):
            os.dup2(kept, fd)
            os.close(kept)


def _replay(history: list[str], namespace: dict[str, Any], silence: Silence) -> list[str]:
    """Run the earlier cells; a line for each that failed."""
    errors = []
    for number, source in enumerate(history, 1):
        silence.cell = number
        try:
            _run(_compile(source, number), namespace)
        except BaseException as error:
            if not isinstance(error, SystemExit) or error.code:
                errors.append(f"replay: cell {number}: {_line(error)}\n")
        if os.getpid() != silence.pid:
            silence.leave(0)
    return errors


def _line(error: BaseException) -> str:
    lines = traceback.format_exception_only(type(error), error)
    line = lines[-1] if isinstance(error, SyntaxError) else lines[0]
    return " ".join(line.split())[:MAX_ERROR]


def _seed(first: str) -> None:
    random.seed(first.encode("utf-8", "surrogatepass"))
    seed = random.getrandbits(32)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _compile(source: str, number: int) -> list[CodeType]:
    """A cell's statements, and apart from them its last expression if that is to be echoed."""
    name = f"Cell {number}"
    lines = LINE_END.split(source)
    linecache.cache[name] = (len(source), None, [line + "\n" for line in lines], name)
    tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    echoed = tree.body and _is_echoed(tree.body[-1], lines)
    last = ast.Interactive([tree.body.pop()] if echoed else [])
    try:
        return [
            compile(tree, name, "exec", dont_inherit=True),
            compile(last, name, "single", dont_inherit=True),
        ]
    except SyntaxError as error:
        if error.text is None and error.lineno:  # found in the tree, which has no text
            error.text = lines[error.lineno - 1]
        raise


def _is_echoed(statement: ast.stmt, lines: list[str]) -> bool:
    if not isinstance(statement, ast.Expr) or statement.end_lineno is None:
        return False
    last_line = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
    return not SEMICOLON.match("\n".join([last_line, *lines[statement.end_lineno :]]))


def _run(parts: list[CodeType], namespace: dict[str, Any]) -> None:
    for part in parts:
        exec(part, namespace)
