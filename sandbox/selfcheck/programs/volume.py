"""Programs that write more than is kept: floods of both streams, full disks, too many files."""

from __future__ import annotations

from sandbox.config import Limits
from sandbox.outcome import Status
from sandbox.selfcheck.model import CONTAINED, Level, Look, Program

NO_QUOTA: dict[Level, str] = {"landlock": "scratch is an ordinary directory, without a quota"}
TOO_MUCH = (Status.OUTPUT_LIMIT,)
KIB = 1024

PROGRAMS = (
    Program(
        "stdout-flood",
        "endless output ends the program, and both ends of it are kept",
        "print('first')\nwhile True: print('x' * 1000)",
        status=TOO_MUCH,
        stdout_has=("first\n", "bytes cut"),
        truncated=True,
    ),
    Program(
        "stderr-flood",
        "the error stream is bounded the same way",
        "import sys\nwhile True: print('x' * 1000, file=sys.stderr)",
        status=TOO_MUCH,
        stdout="",
        stderr_has=("bytes cut",),
        truncated=True,
    ),
    Program(
        "flood-of-both-by-threads",
        "both streams at once, past Python's buffers",
        """
import os, threading
def flood(fd):
    while True:
        os.write(fd, b"y" * 65536)
for fd in (1, 2):
    threading.Thread(target=flood, args=(fd,)).start()
""",
        status=TOO_MUCH,
        truncated=True,
    ),
    Program(
        "flood-by-a-daemon",
        "a daemon that goes on writing neither holds the call up nor outlives it",
        """
import os
if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b"z" * 4096)
os._exit(0)
""",
        status=CONTAINED,
        look=Look("print('fine')", "fine\n"),
    ),
    Program(
        "flood-without-newline",
        "one line without an end is bounded too",
        "import sys\nwhile True: sys.stdout.write('n' * 65536)",
        status=TOO_MUCH,
        truncated=True,
    ),
    Program(
        "output-300-kb",
        "more output than is kept is no failure: head and tail are there, and the mark that says so",
        "print('first')\nprint('x' * 300_000)\nprint('last')",
        stdout_has=("first\n", "bytes cut", "last\n"),
        truncated=True,
    ),
    Program(
        "output-at-the-cap",
        "output of exactly the kept size is whole",
        f"import sys\nsys.stdout.write('c' * {8 * KIB})",
        stdout="c" * 8 * KIB,
        truncated=False,
        limits=Limits(wall_s=60, output_kib=8),
    ),
    Program(
        "output-one-above-the-cap",
        "one byte more is cut and said",
        f"import sys\nsys.stdout.write('c' * {8 * KIB + 1})",
        stdout_has=("... 1 bytes cut ...",),
        truncated=True,
        limits=Limits(wall_s=60, output_kib=8),
    ),
    Program(
        "output-cap-of-its-own",
        "each stream has its own cap",
        f"import sys\nsys.stdout.write('o' * {8 * KIB})\nsys.stderr.write('e' * {8 * KIB})",
        stdout="o" * 8 * KIB,
        stderr="e" * 8 * KIB,
        truncated=False,
        limits=Limits(wall_s=60, output_kib=8),
    ),
    Program(
        "disk-full",
        "scratch is bounded in bytes, and the next call has all of it again",
        """
import os
try:
    with open("big", "wb", buffering=0) as file:
        for _ in range(60):
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.errno, os.path.getsize("big") <= 32 << 20)
""",
        stdout="28 True\n",
        look=Look("open('b', 'wb').write(bytes(20 << 20))\nprint('room')", "room\n"),
        not_on=NO_QUOTA,
    ),
    Program(
        "disk-full-of-many-files",
        "scratch is bounded in bytes over all files",
        """
try:
    for number in range(60):
        with open(f"part-{number}", "wb", buffering=0) as file:
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.errno, number <= 32)
""",
        stdout="28 True\n",
        not_on=NO_QUOTA,
    ),
    Program(
        "inodes-full",
        "scratch is bounded in files, and the next call has all of them again",
        """
try:
    for number in range(5000):
        open(f"f{number}", "w").close()
except OSError as error:
    print(error.errno, number <= 1024)
""",
        stdout="28 True\n",
        look=Look(
            "for i in range(900): open(f'g{i}', 'w').close()\nprint('room')",
            "room\n",
        ),
        not_on=NO_QUOTA,
    ),
    Program(
        "file-of-10-tb",
        "a sparse file cannot be larger than a file may be",
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    open("sparse", "wb").truncate(10 << 40)
except OSError as error:
    print(error.errno)
""",
        stdout="27\n",
    ),
    Program(
        "file-of-100-mb",
        "a file of 100 MB cannot be written",
        """
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("large", "wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.errno in (27, 28), os.path.getsize("large") <= 64 << 20)
""",
        stdout="True True\n",
    ),
    Program(
        "open-files-are-counted",
        "a call has a bounded number of open files",
        """
files = []
try:
    while len(files) < 100_000:
        files.append(open("/dev/null"))
except OSError as error:
    print(error.errno, len(files) <= 256)
""",
        stdout="24 True\n",
    ),
    Program(
        "no-core-dumps",
        "a crash leaves no memory image",
        """
import os
if os.fork() == 0:
    os.abort()
_, status = os.wait()
print(os.WCOREDUMP(status), [name for name in os.listdir(".") if "core" in name])
""",
        stdout="False []\n",
    ),
)
