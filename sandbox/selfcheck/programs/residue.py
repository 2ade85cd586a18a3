"""Programs that leave something behind, each followed by one that looks for it in every slot."""

from __future__ import annotations

from sandbox.selfcheck.model import CONTAINED, Level, Look, Program
from sandbox.selfcheck.programs.limits import SILENT

SHARED_UID: dict[Level, str] = {
    "landlock": "the calls may share a uid, and none can list processes"
}
EMPTY = Look("import os\nprint(os.listdir('.'))", "[]\n")

OF_MY_UID = """
import os
me, others = str(os.getuid()), 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        uids = open(f"/proc/{pid}/status").read().partition("Uid:")[2].split()[:4]
    except OSError:
        continue
    others += me in uids and int(pid) != os.getpid()
print(others)
"""
NOBODY = Look(OF_MY_UID, "0\n")
WRITES = "while True: open('alive', 'w').close(); time.sleep(0.01)"
DAEMON = """
import os, signal, sys, time
print("parent", flush=True)
if os.fork() == 0:
    os.setsid()
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    if os.fork() == 0:
        {then}
        time.sleep(600)
    os._exit(0)
os.wait()
"""

PROGRAMS = (
    Program(
        "daemon",
        "a process left behind does not outlive the call",
        DAEMON.format(then="os.closerange(0, 100)\n        " + WRITES),
        stdout="parent\n",
        look=SILENT,
    ),
    Program(
        "daemon-with-the-output",
        "one that keeps the output open does not hold the call up either",
        DAEMON.format(then=WRITES),
        stdout="parent\n",
        look=SILENT,
    ),
    Program(
        "daemon-that-its-parents-left",
        "nor one whose parents are gone, in a session of its own each time",
        """
import os, time
for _ in range(4):
    if os.fork():
        os._exit(0)
    os.setsid()
"""
        + WRITES,
        look=SILENT,
    ),
    Program(
        "daemon-stopped",
        "nor does one that is stopped",
        DAEMON.format(then="os.kill(os.getpid(), signal.SIGSTOP)"),
        stdout="parent\n",
        look=NOBODY,
        not_on=SHARED_UID,
    ),
    Program(
        "daemons-in-flight",
        "nor a chain that forks and ends faster than it can be listed",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    give_up_at = time.time() + 600
    while time.time() < give_up_at:
        open("alive", "w").close()
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
print("parent")
""",
        stdout="parent\n",
        look=SILENT,
    ),
    Program(
        "closed-tree",
        "directories without any rights are removed",
        "import os\nos.makedirs('a/b/c')\nopen('a/b/f', 'w').close()\nfor path in ('a/b', 'a', '.'):\n"
        "    try: os.chmod(path, 0)\n    except PermissionError: pass",
        look=EMPTY,
    ),
    Program(
        "tree-made-closed",
        "nor do they need a call that changes rights",
        "import os\nos.umask(0o777)\nos.mkdir('a'); os.close(os.open('f', os.O_CREAT)); os.mkdir('b', 0)",
        look=EMPTY,
    ),
    Program(
        "deep-tree",
        "a tree of 900 levels is removed",
        "import os\nfor _ in range(900):\n    os.mkdir('d'); os.chdir('d')",
        look=EMPTY,
    ),
    Program(
        "odd-names",
        "files with any name are removed",
        "import os\nfor name in (b'a\\n"
        "b', b'-rf', b'\\xff\\xfe', b'x' * 255, b'.hidden', b'...', b' ', b'\\\\', b'*',\n"
        "             b'.moved-1', b'.moved-2', b'~', b'$HOME', b'\\x01'):\n"
        "    open(name, 'wb').close(); os.mkdir(b'dir' + name[:200])",
        look=EMPTY,
    ),
    Program(
        "pipes-and-links",
        "pipes, dangling links and links to everything are removed, and what they point to stays",
        "import os\nos.mkfifo('pipe'); os.symlink('/nowhere', 'dangling'); os.symlink('/', 'all'); "
        "os.symlink('.', 'self')\n"
        "os.mkdir('sub'); os.symlink('..', 'sub/up'); os.symlink('/usr', 'sub/usr'); os.link('pipe', 'sub/pipe')",
        look=Look(
            "import os, json\nprint(os.listdir('.'), os.path.exists('/usr/lib'))", "[] True\n"
        ),
    ),
    Program(
        "directory-swapped-for-a-link",
        "a clean-up that follows links would be led out",
        "import os\nos.mkdir('d')\nfor i in range(50): os.symlink('/proc/self/cwd', f'd/l{i}')\n"
        "os.rename('d', 'e'); os.symlink('e', 'd')",
        look=EMPTY,
    ),
    Program(
        "files-held-open",
        "space of removed files that a daemon holds comes back",
        DAEMON.format(
            then="f = open('big', 'wb', buffering=0); f.write(bytes(24 << 20)); os.remove('big')"
        ),
        CONTAINED,
        look=Look("open('b', 'wb').write(bytes(20 << 20))\nprint('room')", "room\n"),
    ),
    Program(
        "sysv-objects",
        "shared memory, queues and semaphores of one call are not seen by the next",
        """
import ctypes
libc = ctypes.CDLL(None)
print([libc.shmget(0x5253, 4096, 0o1666), libc.msgget(0x5253, 0o1666), libc.semget(0x5253, 1, 0o1666)] and "tried")
""",
        stdout="tried\n",
        look=Look(
            "import ctypes\nlibc = ctypes.CDLL(None)\n"
            "print(libc.shmget(0x5253, 4096, 0), libc.msgget(0x5253, 0), libc.semget(0x5253, 1, 0))",
            "-1 -1 -1\n",
        ),
    ),
    Program(
        "posix-objects",
        "message queues and shared memory by name neither",
        """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mq_open(b"/rstar2", os.O_CREAT | os.O_RDWR, 0o666, None)
libc.shm_open(b"/rstar2", os.O_CREAT | os.O_RDWR, 0o666)
libc.sem_open(b"/rstar2", os.O_CREAT, 0o666, 1)
for path in ("/dev/shm/rstar2", "/dev/mqueue/rstar2"):
    try:
        open(path, "w").close()
    except OSError:
        pass
""",
        look=Look(
            "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
            "print(libc.mq_open(b'/rstar2', os.O_RDWR), libc.shm_open(b'/rstar2', os.O_RDWR, 0),\n"
            "      os.path.exists('/dev/shm/sem.rstar2'))",
            "-1 -1 False\n",
        ),
    ),
    Program(
        "abstract-socket-held-by-a-daemon",
        "a name taken by one call's daemon is free for the next, or for nobody",
        DAEMON.format(
            then="import socket; s = socket.socket(socket.AF_UNIX); s.bind('\\0rstar2-left'); s.listen()"
        ),
        CONTAINED,
        look=Look(
            "import socket\ntry:\n    s = socket.socket(socket.AF_UNIX); s.connect('\\0rstar2-left')\n"
            "    print('reached')\nexcept OSError:\n    print('nobody')",
            "nobody\n",
        ),
    ),
    Program(
        "surroundings",
        "working directory, umask, environment and import path begin anew",
        "import os, sys\nos.chdir('/'); os.umask(0o777); os.environ['LEFT'] = '1'; os.environ['PATH'] = ''\n"
        "sys.path.insert(0, '/evil'); sys.argv.append('x'); os.nice(19)",
        look=Look(
            "import os, sys\nos.umask(mask := os.umask(0o22))\n"
            "print(os.getcwd() == os.path.realpath(os.environ['HOME']),\n"
            "      oct(mask), 'LEFT' in os.environ, bool(os.environ['PATH']), '/evil' in sys.path, "
            "sys.argv, os.nice(0))",
            "True 0o22 False True False ['main.py'] 0\n",
        ),
    ),
    Program(
        "changed-interpreter",
        "modules, limits of the interpreter and hooks begin anew",
        "import builtins, gc, json, math, signal, sys\n"
        "builtins.left = 1; math.pi = 3; json.dumps = None; sys.left = 1\n"
        "sys.setrecursionlimit(77); sys.set_int_max_str_digits(0); gc.disable(); sys.excepthook = None\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); sys.modules['left'] = math",
        look=Look(
            "import builtins, gc, json, math, signal, sys\n"
            "print(hasattr(builtins, 'left'), hasattr(sys, 'left'), math.pi > 3.1,\n"
            "      json.dumps(1), sys.getrecursionlimit(), sys.get_int_max_str_digits(), gc.isenabled(),\n"
            "      'left' in sys.modules, signal.getsignal(signal.SIGINT) is signal.default_int_handler)",
            "False False True 1 1000 4300 True False True\n",
        ),
    ),
    Program(
        "module-left-in-scratch",
        "a module that one call writes is not imported by another",
        "import os\nfor name in ('json', 'numpy', 'helper', 'sitecustomize', 'usercustomize', 'encodings'):\n"
        "    open(f'{name}.py', 'w').write('print(\"evil\")')\nos.makedirs('.local/lib/python3.11/site-packages')\n"
        "open('.local/lib/python3.11/site-packages/usercustomize.py', 'w').write('print(\"evil\")')",
        look=Look(
            "import json, subprocess, sys\ntry:\n    import helper\nexcept ImportError:\n"
            "    print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, "
            "text=True).stdout, end='')",
            "1\n",
        ),
    ),
)
