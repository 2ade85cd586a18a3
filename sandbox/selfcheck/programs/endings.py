"""The many ways in which a program ends, and what each is reported as."""

from __future__ import annotations

from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.selfcheck.model import CONTAINED, ERROR, OK, OUT_OF_TIME, Program

SIGNAL = (Status.SIGNAL,)
TIMEOUT = (Status.TIMEOUT,)
SHORT_WALL = Limits(cpu_s=4, wall_s=2.5)

PROGRAMS = (
    Program("leave-0", "os._exit(0) is a success", "import os; os._exit(0)", OK, "", exit_code=0),
    Program("leave-7", "os._exit(7) is its code", "import os; os._exit(7)", ERROR, "", exit_code=7),
    Program("exit-none", "sys.exit() is a success", "import sys; sys.exit()", exit_code=0),
    Program("exit-3", "sys.exit(3) is its code", "import sys; sys.exit(3)", ERROR, exit_code=3),
    Program(
        "exit-text",
        "sys.exit('bye') says bye on stderr",
        "import sys; sys.exit('bye')",
        ERROR,
        exit_code=1,
        stderr="bye\n",
    ),
    Program(
        "exit-large",
        "an exit code is what the system keeps of it",
        "import sys; sys.exit(256 + 5)",
        ERROR,
        exit_code=5,
    ),
    Program(
        "exit-negative", "sys.exit(-1) is 255", "import sys; sys.exit(-1)", ERROR, exit_code=255
    ),
    Program(
        "exit-of-an-unknown-kind",
        "sys.exit of any object prints it",
        "import sys; sys.exit({'why': [1]})",
        ERROR,
        exit_code=1,
        stderr="{'why': [1]}\n",
    ),
    Program("exit-builtin", "exit() works as in any script", "print(1)\nexit()", stdout="1\n"),
    Program(
        "exit-in-a-function",
        "SystemExit runs finally blocks on its way",
        "def f():\n    try:\n        raise SystemExit(4)\n    finally:\n        print('cleaned')\nf()",
        ERROR,
        "cleaned\n",
        exit_code=4,
    ),
    Program("abort", "abort is signal 6", "import os; os.abort()", SIGNAL, signal=6),
    Program(
        "kill-itself",
        "SIGKILL by its own hand is the program's doing",
        "import os; print('x', flush=True); os.kill(os.getpid(), 9)",
        SIGNAL,
        "x\n",
        signal=9,
    ),
    Program(
        "stop-itself",
        "a stopped program meets the wall clock",
        "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGSTOP)",
        TIMEOUT,
        "x\n",
        limits=SHORT_WALL,
    ),
    Program(
        "terminate-itself",
        "SIGTERM is signal 15",
        "import os; os.kill(os.getpid(), 15)",
        SIGNAL,
        signal=15,
    ),
    Program(
        "segmentation-fault",
        "a crash in C is signal 11",
        "import ctypes; ctypes.string_at(0)",
        SIGNAL,
        signal=11,
    ),
    Program(
        "uncaught-error",
        "an uncaught error is exit code 1 with a traceback, after the output",
        "print('before')\n1 / 0",
        ERROR,
        "before\n",
        stderr_has=("line 2, in <module>", "ZeroDivisionError: division by zero"),
        exit_code=1,
    ),
    Program(
        "keyboard-interrupt",
        "KeyboardInterrupt fails the program like any error",
        "raise KeyboardInterrupt",
        (Status.ERROR, Status.SIGNAL),
        stderr_has=("KeyboardInterrupt",),
    ),
    Program(
        "base-exception",
        "an error outside of Exception is one all the same",
        "class Odd(BaseException): pass\nraise Odd('no')",
        ERROR,
        stderr_has=("Odd: no",),
    ),
    Program(
        "error-that-cannot-be-printed",
        "an error whose text fails is still an error",
        "class Bad(Exception):\n    def __str__(self): raise ValueError('worse')\nraise Bad",
        ERROR,
        stderr_has=("Bad",),
    ),
    Program(
        "error-of-100-mb",
        "an error with an endless text is contained",
        "raise ValueError('m' * 100_000_000)",
        CONTAINED,
    ),
    Program(
        "exec-away",
        "a program may become another one; its end counts",
        "import os; os.execv('/bin/sh', ['sh', '-c', 'echo shell; exit 3'])",
        ERROR,
        "shell\n",
        exit_code=3,
    ),
    Program(
        "fork-and-both-end",
        "a child that runs to the end of the program ends there",
        "import os, sys\npid = os.fork()\nif pid: os.wait()\nprint('child' if pid == 0 else 'parent')",
        stdout="child\nparent\n",
    ),
    Program(
        "fork-and-child-fails",
        "a child's error is not the program's",
        "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()\nprint('on')",
        stdout="on\n",
        stderr_has=("ZeroDivisionError",),
    ),
    Program(
        "atexit-runs",
        "exit handlers run, last first, and what they print is kept",
        "import atexit\natexit.register(print, 'second')\natexit.register(print, 'first')\nprint('body')",
        stdout="body\nfirst\nsecond\n",
    ),
    Program(
        "atexit-bomb",
        "an exit handler that registers itself for ever ends in time, and output so far is kept",
        "import atexit, time\ndef again():\n    while True:\n        time.sleep(0.001)\n"
        "        atexit.register(again)\natexit.register(again)\nprint('before')",
        OUT_OF_TIME,
        "before\n",
        limits=SHORT_WALL,
    ),
    Program(
        "atexit-sleeps",
        "an exit handler has no more time than the program",
        "import atexit, time\natexit.register(time.sleep, 600)\nprint('before')",
        TIMEOUT,
        "before\n",
        limits=SHORT_WALL,
    ),
    Program(
        "thread-left-running",
        "a thread that never ends holds the program to the wall clock, output so far is kept",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nprint('before')",
        TIMEOUT,
        "before\n",
        limits=SHORT_WALL,
    ),
    Program(
        "thread-that-is-awaited",
        "a thread that ends later is waited for",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
        stdout="late\n",
    ),
    Program(
        "daemon-thread",
        "a daemon thread is not waited for",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\nprint('end')",
        stdout="end\n",
    ),
    Program(
        "thread-fails",
        "an error in a thread is shown and does not fail the program",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()\nprint('on')",
        stdout="on\n",
        stderr_has=("ZeroDivisionError",),
    ),
    Program(
        "leave-from-a-thread",
        "os._exit from many threads is one end",
        "import os, threading\nfor _ in range(8): threading.Thread(target=os._exit, args=(9,)).start()\n"
        "threading.Event().wait()",
        ERROR,
        exit_code=9,
    ),
    Program(
        "deaf-and-asleep",
        "a program that ignores every signal meets the wall clock",
        "import signal, time\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nprint('deaf', flush=True)\ntime.sleep(600)",
        TIMEOUT,
        "deaf\n",
        limits=SHORT_WALL,
    ),
    Program(
        "deaf-and-spinning",
        "and one that computes meanwhile ends too",
        "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nprint('deaf', flush=True)\nwhile True: pass",
        OUT_OF_TIME,
        "deaf\n",
        limits=SHORT_WALL,
    ),
    Program(
        "signals-blocked",
        "blocking signals helps as little as ignoring them",
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(600)",
        TIMEOUT,
        limits=SHORT_WALL,
    ),
    Program(
        "alarm-handler-that-refuses",
        "a handler that swallows the warning does not get more time",
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: time.sleep(600))\ntime.sleep(600)",
        TIMEOUT,
        limits=SHORT_WALL,
    ),
)
