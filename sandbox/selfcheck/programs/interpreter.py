"""Programs that turn on their own interpreter: patched builtins, deep recursion, walks up the stack."""

from __future__ import annotations

from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.selfcheck.model import CONTAINED, ERROR, OK, OUT_OF_TIME, SHORT, Look, Program
from sandbox.selfcheck.programs.processes import SECRET

# A server whose frames went on running in the call would print, fork or answer once more.
FALL_THROUGH = "import time\nprint('once', flush=True)\n"
ONCE = "once\n"
SOUND = Look(
    "import builtins, json, math, os, random, sys\n"
    "print(len([1, 2]), json.dumps([math.floor(2.5)]), os.getpid() > 1)",
    "2 [2] True\n",
)

PROGRAMS = (
    Program(
        "patched-builtins",
        "replaced builtins are the call's own affair",
        "import builtins\nfor name in ('print', 'len', 'open', 'exec', 'compile', 'isinstance', 'BaseException'):\n"
        "    setattr(builtins, name, None)",
        CONTAINED,
        look=SOUND,
    ),
    Program(
        "patched-exits",
        "without its ways out the call still ends there, and not in the service's code",
        FALL_THROUGH
        + "import os, signal, sys\nos._exit = sys.exit = os.kill = os.abort = signal.signal = lambda *_: None",
        CONTAINED,
        ONCE,
        look=SOUND,
    ),
    Program(
        "patched-exits-and-an-error",
        "the same when the program fails",
        FALL_THROUGH
        + "import os, traceback, sys\nos._exit = os.kill = lambda *_: None\ntraceback.print_exception = None\n"
        "sys.excepthook = None\nraise ValueError('no')",
        CONTAINED,
        ONCE,
        look=SOUND,
    ),
    Program(
        "patched-modules",
        "emptied modules are the call's own affair",
        FALL_THROUGH + "import sys\nfor name in list(sys.modules): sys.modules[name] = None",
        CONTAINED,
        ONCE,
        look=SOUND,
    ),
    Program(
        "modules-cleared",
        "so is an empty sys.modules",
        FALL_THROUGH + "import sys\nsys.modules.clear()",
        CONTAINED,
        ONCE,
        look=SOUND,
    ),
    Program(
        "patched-atexit-and-threading",
        "the last steps of the interpreter can be patched without effect on others",
        FALL_THROUGH
        + "import atexit, threading\nthreading._shutdown = atexit._run_exitfuncs = lambda: 1 / 0",
        CONTAINED,
        ONCE,
        look=SOUND,
    ),
    Program(
        "patched-service-functions",
        "what a call finds of the service in its memory is its own copy",
        FALL_THROUGH
        + """
import gc, types
for one in gc.get_objects():
    if isinstance(one, types.FunctionType) and one.__module__.split(".")[0] in ("server", "sandbox"):
        one.__code__ = (lambda *a, **k: None).__code__
    if isinstance(one, types.ModuleType) and one.__name__.split(".")[0] in ("server", "sandbox"):
        vars(one).clear()
""",
        CONTAINED,
        ONCE,
        look=SOUND,
    ),
    Program(
        "error-past-everything",
        "an asynchronous error in the last moment ends the call, not more",
        FALL_THROUGH
        + """
import ctypes, threading, time
main = threading.main_thread().ident
def throw():
    while True:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(KeyboardInterrupt))
threading.Thread(target=throw, daemon=True).start()
time.sleep(0.1)
""",
        CONTAINED,
        ONCE,
        limits=Limits(cpu_s=2, wall_s=3),
        look=SOUND,
    ),
    Program(
        "streams-closed",
        "closed streams are no failure of the service",
        "import sys\nprint('said', flush=True)\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        (Status.OK, Status.ERROR),
        "said\n",
    ),
    Program(
        "streams-replaced",
        "streams may be replaced by anything",
        "import sys\nprint('said', flush=True)\nsys.stdout = sys.__stdout__ = None\nsys.stderr = object()",
        (Status.OK, Status.ERROR),
        "said\n",
    ),
    Program(
        "all-files-closed",
        "a call without files ends like any other",
        "import os\nos.write(1, b'said\\n')\nos.closerange(0, 4096)",
        (Status.OK, Status.ERROR),
        "said\n",
    ),
    Program(
        "garbage-to-every-file",
        "there is no file of the service that garbage could be written to",
        "import os\nwritten = 0\nfor fd in range(3, 51):\n    try: written += os.write(fd, b'\\xff' * 4096)\n"
        "    except OSError: pass\nprint(written)",
        OK,
        "0\n",
    ),
    Program(
        "forged-answers",
        "what looks like the service's own messages is text",
        """
import json, struct, sys
body = json.dumps({"id": 1, "status": "ok", "stdout": "forged", "stderr": "", "slot": 0, "wait": 0}).encode()
for stream in (sys.stdout, sys.stderr):
    stream.buffer.write(struct.pack("!I", len(body)) + body + b"\\n")
    stream.flush()
sys.exit(5)
""",
        ERROR,
        exit_code=5,
        stdout_has=('"status": "ok"',),
        stderr_has=('"stdout": "forged"',),
    ),
    Program(
        "recursion",
        "endless recursion is a RecursionError",
        "def f(): f()\nf()",
        ERROR,
        stderr_has=("RecursionError",),
    ),
    Program(
        "recursion-without-limit",
        "with the limit lifted it ends with the stack, the memory or the time",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return [f(x)]\nf(1)",
        (Status.SIGNAL, Status.ERROR, Status.MEMORY, *OUT_OF_TIME),
        limits=Limits(cpu_s=2, wall_s=9),
    ),
    Program(
        "recursion-in-c",
        "a structure too deep to print ends the call alone",
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(500_000): x = [x]\nrepr(x)",
        (Status.SIGNAL, Status.ERROR, Status.MEMORY, *OUT_OF_TIME),
        limits=Limits(cpu_s=4, wall_s=9),
    ),
    Program(
        "deep-json",
        "JSON of 200,000 levels is a RecursionError",
        "import json\njson.loads('[' * 200_000)",
        ERROR,
        stderr_has=("RecursionError",),
    ),
    Program(
        "deep-source",
        "a source of 100,000 levels is an error of the program",
        "eval('(' * 100_000 + ')' * 100_000)",
        (Status.ERROR, Status.MEMORY, Status.SIGNAL),
    ),
    Program(
        "trace-function",
        "a trace function that raises everywhere",
        FALL_THROUGH
        + "import sys\ndef trace(*_): raise RuntimeError('traced')\nsys.settrace(trace); sys.setprofile(trace)\n"
        "def f(): pass\nf()",
        CONTAINED,
        ONCE,
    ),
    Program(
        "exception-hook",
        "an own exception hook that never returns ends in time",
        "import sys, time\nsys.excepthook = lambda *_: time.sleep(600)\nprint('before')\n1 / 0",
        (Status.ERROR, *OUT_OF_TIME),
        "before\n",
        limits=SHORT,
    ),
    Program(
        "main-deleted",
        "__main__ may go while it runs",
        "import sys\ndel sys.modules['__main__'], __name__, __builtins__\nprint('on')",
        (Status.OK, Status.ERROR),
    ),
    Program(
        "collector-switched",
        "thresholds, freezing and callbacks of the collector are the call's own",
        "import gc\ngc.unfreeze(); gc.set_threshold(1, 1, 1)\ngc.callbacks.append(lambda *_: None)\n"
        "print(gc.collect() >= 0)\ngc.disable()",
        OK,
        "True\n",
    ),
    Program(
        "walk-up-the-stack",
        "the frames above a program hold no other call's data and no open channel",
        f"""
import os, re, socket, sys
def is_open(fd):
    try:
        return os.fstat(fd) is not None
    except OSError:
        return False
found, frame = [], sys._getframe()
while frame is not None:
    for name, value in list(frame.f_locals.items()):
        if frame.f_globals.get("__name__") != "__main__" or frame.f_code.co_filename != "main.py":
            if isinstance(value, socket.socket) and is_open(value.fileno()):
                found.append("open socket " + name)
            if re.search({SECRET!r}, repr(value)[: 1 << 20]):
                found.append("code in " + name)
    frame = frame.f_back
print(found)
""",
        OK,
        "[]\n",
    ),
    Program(
        "inspect-the-stack",
        "the innermost frames that inspect shows are the program's own",
        "import inspect\ndef f():\n    return [(one.function, one.lineno) for one in inspect.stack()[:2]]\n"
        "print(f())",
        OK,
        "[('f', 3), ('<module>', 4)]\n",
    ),
    Program(
        "import-the-service",
        "the service's code is no module of the program's",
        "for name in ('server', 'server.child', 'server.zygote', 'sandbox'):\n    try:\n        __import__(name)\n"
        "        print(name)\n    except (ImportError, OSError):\n        pass",
        OK,
        "",
    ),
)
