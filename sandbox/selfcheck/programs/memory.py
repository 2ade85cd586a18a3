"""Programs that take more memory than they may, in one process or many, or in none."""

from __future__ import annotations

from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.selfcheck.model import CONTAINED, Level, Program

MEMORY = (Status.MEMORY,)
WHY = "one process is bounded, the sum of many is not without a cgroup"
NO_TOTAL: dict[Level, str] = {"userns": WHY, "landlock": WHY}
HOG = """
import os, time
try:
    open("/proc/self/oom_score_adj", "w").write("0")
except OSError:
    pass
hoard = bytearray(300 << 20)
for at in range(0, len(hoard), 4096):
    hoard[at] = 1
time.sleep(2)
"""

PROGRAMS = (
    Program(
        "memory-by-list",
        "a list that grows for ever is a MemoryError",
        "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))",
        status=MEMORY,
        stderr_has=("MemoryError",),
    ),
    Program(
        "memory-8-gb-literal",
        "an allocation of 8 GB is a MemoryError",
        "b'x' * (8 << 30)",
        status=MEMORY,
        stderr_has=("MemoryError",),
    ),
    Program(
        "memory-numpy-12-gb",
        "an array of 12 GB is numpy's own MemoryError",
        "import numpy\nnumpy.ones(12 * 2**30 // 8)",
        status=MEMORY,
        stderr_has=("Unable to allocate",),
    ),
    Program(
        "memory-error-caught",
        "a MemoryError can be handled, and the program goes on",
        "try:\n    bytearray(8 << 30)\nexcept MemoryError:\n    print('handled')",
        stdout="handled\n",
    ),
    Program(
        "memory-by-mmap",
        "mapped memory counts too",
        """
import mmap
maps = []
try:
    while len(maps) < 64:
        maps.append(mmap.mmap(-1, 64 << 20))
except OSError as error:
    print(error.errno, 0 < len(maps) <= 8)
""",
        stdout="12 True\n",
    ),
    Program(
        "memory-by-25-children",
        "what no single process may take, many together may not take from others either",
        """
import os, time
for _ in range(25):
    try:
        if os.fork() == 0:
            hoard = bytearray(300 << 20)
            for at in range(0, len(hoard), 4096):
                hoard[at] = 1
            time.sleep(3)
            os._exit(0)
    except OSError:
        break
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
""",
        status=CONTAINED,
        limits=Limits(cpu_s=20, wall_s=10),
        alone=True,
        not_on=NO_TOTAL,
    ),
    Program(
        "memory-with-others-to-die-first",
        "asking the kernel to kill others first costs those at most a retry",
        f"""
import os, subprocess, sys
hog = {HOG!r}
children = []
for _ in range(25):
    try:
        children.append(subprocess.Popen([sys.executable, "-c", hog]))
    except OSError:
        break
for child in children:
    child.wait()
""",
        status=CONTAINED,
        limits=Limits(cpu_s=20, wall_s=10),
        alone=True,
        not_on=NO_TOTAL,
    ),
    Program(
        "memory-by-anonymous-files",
        "memory that belongs to no process takes nothing from others",
        """
import os
files, piece = [], bytes(1 << 20)
try:
    for _ in range(100):
        files.append(os.memfd_create("hoard"))
        for _ in range(63):
            os.write(files[-1], piece)
except OSError:
    pass
""",
        status=CONTAINED,
        limits=Limits(cpu_s=4, wall_s=10),
        alone=True,
        not_on=NO_TOTAL,
    ),
)
