"""The forked child of one call: gives up every right that it has, then runs the program.

It owns no file but the program's three standard streams, so there is no protocol that a program could
forge. It leaves only by `_exit` or by a signal, both captured before the program can replace them: the
frames of the zygote below must never go on running in here.
"""

from __future__ import annotations

import atexit
import gc
import io
import linecache
import math
import os
import resource
import signal
import sys
import threading
import traceback
from types import FrameType, ModuleType
from typing import Any

from . import linux

FILE_NAME = "main.py"
MEMORY_SIGNAL = (
    63  # how a child says "uncaught MemoryError": no exit code is taken from the program
)
MIB = 1 << 20
MAX_FILE = 64 * MIB
MAX_OPEN_FILES = 256


def run(request: dict[str, Any], fds: list[int], base_memory: int) -> None:
    """Become the program. Does not return."""
    kill, pid, sigkill = os.kill, os.getpid(), signal.SIGKILL
    try:
        _become(request, fds, base_memory)
    finally:
        kill(pid, sigkill)


def _become(request: dict[str, Any], fds: list[int], base_memory: int) -> None:
    leave = os._exit
    linux.die_with_parent()
    os.setsid()
    with open(fds[0], "rb", closefd=False) as file:
        code = file.read()
    for target, source in enumerate(fds[1:]):
        os.dup2(source, target)
    signal.set_wakeup_fd(-1)
    os.closerange(3, 1 << 20)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _limit(request["limits"], base_memory)
    _drop_rights(request["uid"])
    box = request["box"]
    os.chdir(box)
    os.environ["HOME"] = os.environ["TMPDIR"] = box
    _streams()
    module = _main_module(box)
    _reseed(code)
    gc.enable()
    try:
        status = _execute(code, module)
        leave(_finish(status))
    except MemoryError:
        os.kill(os.getpid(), MEMORY_SIGNAL)


def _limit(limits: dict[str, Any], base_memory: int) -> None:
    cpu_s = math.ceil(limits["cpu_s"])
    memory = base_memory + limits["memory_mb"] * MIB
    for which, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_NPROC, limits["tasks"], limits["tasks"]),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, MAX_FILE, MAX_FILE),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(which, (soft, hard))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, calls go before the service


def _drop_rights(uid: int | None) -> None:
    if uid is None:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.die_with_parent()  # a change of uid has cleared it
    if os.getresuid() != (uid, uid, uid):
        raise PermissionError("the uid was not dropped")


def _streams() -> None:
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), "utf-8", "replace")
    out = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    err = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(out, "utf-8", "backslashreplace")
    sys.stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", line_buffering=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))

    def give_up(number: int, frame: FrameType | None) -> None:
        """A limit was met: hand over the output so far, then end by that signal."""
        _flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGALRM, give_up)
    signal.signal(signal.SIGXCPU, give_up)


def _main_module(box: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__.update(__file__=FILE_NAME, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = module
    for name in [name for name in sys.modules if name.split(".")[0] == __package__]:
        del sys.modules[name]
    sys.argv = [FILE_NAME]
    sys.path[0] = box
    return module


def _reseed(code: bytes) -> None:
    """numpy's global generator would be the zygote's in every call (`random` reseeds itself at fork)."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and b"random" in code:
        numpy.random.seed()


def _execute(code: bytes, module: ModuleType) -> int:
    """Run the program; its exit code. A MemoryError passes through."""
    try:
        source = code.decode("utf-8")
        linecache.cache[FILE_NAME] = (
            len(source),
            None,
            source.splitlines(keepends=True),
            FILE_NAME,
        )
        exec(compile(source, FILE_NAME, "exec", dont_inherit=True), module.__dict__)
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
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _finish(status: int) -> int:
    """What an interpreter does after the last line: flush, wait for threads, run exit handlers, flush."""
    _flush()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return status if _flush() else (status or 120)


def _flush() -> bool:
    done = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            done = False
    return done
