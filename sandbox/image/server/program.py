"""The program of one call, a script or a cell, run in a child that has given up its rights already.

The traceback of an uncaught error shows the program's own lines only; output so far survives a limit that
is met, because the signals that announce it flush first.
"""

from __future__ import annotations

import atexit
import gc
import io
import linecache
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, ModuleType

from . import cells, linux
from .draws import Generators

FILE_NAME = "main.py"
PRACTICE = 20  # after so many runs the interpreter has made its code what it will be
OWN_FILES = os.path.dirname(__file__) + os.sep
CELL_LINE = re.compile(r'File "(Cell \d+)"(?=, line )')

_generators: Generators


def prepare() -> None:
    """In the zygote, once, for all its children: what needs nothing of a call."""
    global _generators
    _generators = Generators()
    _main_module()
    _with_streams_of_a_call(_prepare_streams)


def _prepare_streams() -> None:
    """Open them, and run some programs: what runs for the first time is slow and writes to pages, which each child
    would copy."""
    _open_streams()
    module = sys.modules["__main__"]
    for _ in range(PRACTICE):
        _execute(_script, b"print(1)", module)
        _flush()
    module.__dict__.pop("__file__")


def run(code: bytes, box: str, cell: bool) -> int:
    """Run `code` with `box` as its directory; the exit code. A MemoryError passes through."""
    sys.path[0] = box
    gc.enable()
    body = cells.run if cell else _script
    return _finish(_execute(body, code, sys.modules["__main__"]))


def _with_streams_of_a_call(action: Callable[[], None]) -> None:
    """Run `action` with a file and two pipes as descriptors 0 to 2."""
    kept = [os.dup(fd) for fd in range(3)]
    read, write = os.pipe()
    file = os.memfd_create("stdin")
    for fd, source in enumerate((file, write, write)):
        os.dup2(source, fd)
    action()
    for fd, source in enumerate(kept):
        os.dup2(source, fd)
    for fd in (*kept, read, write, file):
        os.close(fd)


def _open_streams() -> None:
    source = io.BufferedReader(io.FileIO(0, "r", closefd=False))
    sys.stdin = io.TextIOWrapper(source, "utf-8", "replace")
    out = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    err = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(out, "utf-8", "backslashreplace")
    sys.stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", line_buffering=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))

    def give_up(number: int, frame: FrameType | None) -> None:
        """A limit was met: hand over the output so far, then end by that signal."""
        cells.speak_of_limit(number)
        _flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGALRM, give_up)
    signal.signal(signal.SIGXCPU, give_up)


def _main_module() -> None:
    """An empty main program, in an interpreter that has never heard of the server's modules."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    for name in [name for name in sys.modules if name.split(".")[0] == __package__]:
        del sys.modules[name]
    sys.argv = [FILE_NAME]


def _script(code: bytes, module: ModuleType) -> None:
    _generators.seed()
    source = code.decode("utf-8")
    linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)
    module.__dict__["__file__"] = FILE_NAME
    exec(compile(source, FILE_NAME, "exec", dont_inherit=True), module.__dict__)


def _execute(body: Callable[[bytes, ModuleType], None], code: bytes, module: ModuleType) -> int:
    """Run the program; its exit code. A MemoryError passes through."""
    try:
        body(code, module)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        _flush()
        _report(error)
        if isinstance(error, MemoryError):
            raise
        return 1
    return 0


def _report(error: BaseException) -> None:
    """Print the traceback as the plain interpreter would: the program's own lines only."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_FILES):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    with suppress(OSError, ValueError, AttributeError):  # the program may have closed it
        print(CELL_LINE.sub(r"\1", text), end="", file=sys.stderr)


def _finish(status: int) -> int:
    """What an interpreter does after the last line: flush, wait for threads, run exit handlers, flush."""
    _flush_python()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return status if _flush() else (status or 120)


def _flush() -> bool:
    done = _flush_python()
    linux.flush_c_streams()
    return done


def _flush_python() -> bool:
    done = True
    for stream in {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}:
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            done = False
    return done
