"""Programs that take more than they may: processes, processor time, patience."""

from __future__ import annotations

from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.selfcheck.model import (
    OUT_OF_TIME,
    SHORT,
    Look,
    Program,
)

FEW_TASKS = Limits(cpu_s=4, wall_s=60, tasks=16)
SILENT = Look("import os, time\ntime.sleep(0.2)\nprint(os.listdir('.'))", "[]\n")
"""What writes to its directory for ever, writes no more."""

PROGRAMS = (
    Program(
        "fork-bomb",
        "a fork bomb ends in time, and nothing of it is left",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: open('alive', 'w').close()",
        status=OUT_OF_TIME,
        limits=SHORT,
        look=SILENT,
    ),
    Program(
        "fork-bomb-of-sessions",
        "a fork bomb whose children leave the process group ends in time",
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n"
        "    except OSError: open('alive', 'w').close()",
        status=OUT_OF_TIME,
        limits=SHORT,
        look=SILENT,
    ),
    Program(
        "fork-bomb-that-leaves",
        "a fork bomb whose first process ends at once is ended with it",
        """
import os
if os.fork() == 0:
    os.setsid()
    while True:
        try:
            os.fork()
        except OSError:
            open("alive", "w").close()
print("gone")
""",
        stdout="gone\n",
        look=SILENT,
    ),
    Program(
        "processes-are-counted",
        "no more processes than `tasks` can be made",
        """
import os, signal
children = []
try:
    while len(children) < 500:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except BlockingIOError:
    pass
for pid in children:
    os.kill(pid, 9)
print(0 < len(children) < 16)
""",
        stdout="True\n",
        limits=FEW_TASKS,
        not_on={"landlock": "the kernel counts all processes of the shared uid together"},
    ),
    Program(
        "threads-are-counted",
        "ten thousand threads end in a RuntimeError",
        """
import threading
release, started = threading.Event(), 0
try:
    for _ in range(10_000):
        threading.Thread(target=release.wait).start()
        started += 1
except RuntimeError as error:
    print(error, started < 16)
release.set()
""",
        stdout="can't start new thread True\n",
        limits=FEW_TASKS,
        not_on={"landlock": "the kernel counts all threads of the shared uid together"},
    ),
    Program(
        "cpu-spin",
        "an endless loop meets the CPU clock, and its output so far is kept",
        "print('before')\nwhile True: pass",
        status=(Status.CPU_LIMIT,),
        stdout="before\n",
        limits=Limits(cpu_s=1, wall_s=60),
    ),
    Program(
        "cpu-signal-ignored",
        "a program that ignores SIGXCPU ends at the CPU limit all the same",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        status=(Status.CPU_LIMIT,),
        limits=Limits(cpu_s=1, wall_s=60),
    ),
    Program(
        "cpu-inside-one-instruction",
        "a computation that never returns to the interpreter ends in time",
        "print('before', flush=True)\n9 ** 9 ** 9",
        status=OUT_OF_TIME,
        stdout="before\n",
        limits=Limits(cpu_s=1, wall_s=20),
    ),
    Program(
        "cpu-by-children-at-once",
        "children that spin side by side end in time",
        """
import os
for _ in range(4):
    if os.fork() == 0:
        while True:
            pass
for _ in range(4):
    os.wait()
""",
        status=OUT_OF_TIME,
        limits=Limits(cpu_s=1, wall_s=8),
    ),
    Program(
        "cpu-by-children-in-turn",
        "children that each stay below the CPU limit end in time together",
        """
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.3:
            pass
        os._exit(0)
    os.wait()
""",
        status=OUT_OF_TIME,
        limits=Limits(cpu_s=1, wall_s=5),
    ),
    Program(
        "wall-sleep",
        "a sleeper meets the wall clock, and its output so far is kept",
        "import time\nprint('before')\ntime.sleep(600)",
        status=(Status.TIMEOUT,),
        stdout="before\n",
        limits=Limits(wall_s=1),
    ),
    Program(
        "wall-sleep-uses-no-cpu",
        "waiting does not count as computing",
        "import time\ntime.sleep(1.5)\nprint(time.process_time() < 1)",
        stdout="True\n",
        limits=Limits(cpu_s=1, wall_s=60),
    ),
    Program(
        "limits-cannot-be-raised",
        "no resource limit can be lifted",
        """
import resource
lifted = []
for name in ("AS", "CPU", "NPROC", "NOFILE", "FSIZE", "CORE"):
    which = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(which)
    for value in (resource.RLIM_INFINITY, hard + 1):
        try:
            resource.setrlimit(which, (value, value))
            lifted.append(name)
        except (ValueError, OSError):
            pass
    if hard == resource.RLIM_INFINITY:
        lifted.append(f"{name} is unlimited")
print(lifted)
""",
        stdout="[]\n",
    ),
    Program(
        "priority-cannot-be-raised",
        "a call cannot get ahead of others",
        """
import os
raised = []
for what, action in (
    ("nice", lambda: os.nice(-5)),
    ("fifo", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
    ("round robin", lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))),
):
    try:
        action()
        raised.append(what)
    except OSError:
        pass
print(raised)
""",
        stdout="[]\n",
    ),
)
