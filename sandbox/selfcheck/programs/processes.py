"""Programs that reach for other processes, or for more rights than a call has."""

from __future__ import annotations

from sandbox.selfcheck.model import powerless

# Other calls of this suite carry such a word in their code; this pattern does not match itself.
SECRET = "innocent-[0-9a-f]{16}"

PROGRAMS = (
    powerless(
        "identity",
        "a call is nobody: an ordinary uid, no groups, no capabilities, no way to new privileges",
        """
uids, gids = os.getresuid(), os.getresgid()
if len(set(uids)) != 1 or 0 in uids or 0 in gids:
    breaches.append(f"uids {uids}, gids {gids}")
if [group for group in os.getgroups() if group != gids[0]]:
    breaches.append(f"groups {os.getgroups()}")
fields = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
    if int(fields[name], 16):
        breaches.append(f"{name} {fields[name]}")
if fields["NoNewPrivs"].strip() != "1":
    breaches.append("new privileges are possible")
""",
    ),
    powerless(
        "filter-of-system-calls",
        "a seccomp filter of our own stands, on every level",
        """
fields = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
if fields["Seccomp"].strip() != "2":
    breaches.append("no filter")
""",
    ),
    powerless(
        "become-root",
        "no uid or gid can be changed",
        """
for name, action in (
    ("setuid", lambda: os.setuid(0)),
    ("seteuid", lambda: os.seteuid(0)),
    ("setgid", lambda: os.setgid(0)),
    ("setresuid", lambda: os.setresuid(0, 0, 0)),
    ("setgroups", lambda: os.setgroups([0])),
    ("neighbour below", lambda: os.setuid(os.getuid() - 1)),
    ("neighbour above", lambda: os.setuid(os.getuid() + 1)),
):
    refused(name, action)
""",
    ),
    powerless(
        "capabilities-regained",
        "no capability can be raised, permanently or for an exec",
        """
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
class Data(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]
for capability in range(41):
    data = (Data * 2)()
    for part in (data[0], data[1]):
        part.effective = part.permitted = 0
    data[capability // 32].effective = data[capability // 32].permitted = 1 << capability % 32
    if libc.capset(ctypes.byref(Header(0x20080522, 0)), data) == 0:
        breaches.append(f"capset {capability}")
    if libc.prctl(47, 2, capability, 0, 0) == 0:  # PR_CAP_AMBIENT_RAISE
        breaches.append(f"ambient {capability}")
""",
    ),
    powerless(
        "set-uid-programs",
        "programs that raise their user's rights do not do so here",
        """
import shutil, subprocess
for name in ("su", "mount", "passwd", "newgrp", "chsh", "sudo"):
    path = shutil.which(name)
    if path is None:
        continue
    done = subprocess.run([path, "--version"], capture_output=True, stdin=subprocess.DEVNULL)
try:
    shutil.copyfile("/bin/sh", "./shell")
    os.chmod("shell", 0o6755)
    done = subprocess.run(["./shell", "-p", "-c", "id -u"], capture_output=True, text=True)
    if done.stdout.strip() == "0":
        breaches.append("a set-uid copy gave root")
except OSError:
    pass
""",
    ),
    powerless(
        "processes-of-others",
        "nothing of another process can be read",
        """
for pid in others():
    for name in ("environ", "mem", "maps", "auxv", "stack", "syscall"):
        try:
            if open(f"/proc/{pid}/{name}", "rb").read(1):
                breaches.append(f"{pid}/{name}")
        except OSError:
            pass
    for name in ("cwd", "root", "exe", "ns/pid"):
        try:
            breaches.append(f"{pid}/{name} {os.readlink(f'/proc/{pid}/{name}')}")
        except OSError:
            pass
    for name in ("fd", "map_files", "root/"):
        try:
            breaches += [f"{pid}/{name}/{one}" for one in os.listdir(f"/proc/{pid}/{name}")]
        except OSError:
            pass
""",
    ),
    powerless(
        "command-lines-of-others",
        "no other process's command line holds a secret",
        f"""
import re
for pid in others():
    try:
        line = open(f"/proc/{{pid}}/cmdline", "rb").read()
    except OSError:
        continue
    if re.search(b"(?i){SECRET}|token|password", line):
        breaches.append(f"{{pid}}: {{line[:80]}}")
""",
    ),
    powerless(
        "environment",
        "no variable of the machine's owner is inherited",
        """
import re
for name in os.environ:
    if re.search("KEY|TOKEN|SECRET|PASSWORD|PROXY|DOCKER|RAY_|MLFLOW|PREFECT|PYTHONPATH", name, re.I):
        breaches.append(name)
if len(os.environ) > 16:
    breaches.append(f"{len(os.environ)} variables")
""",
    ),
    powerless(
        "kill-every-process",
        "no signal reaches a process outside the call",
        """
for pid in others():
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        refused(f"{number} to {pid}", lambda: os.kill(pid, number))
if os.getppid():
    refused("the parent", lambda: os.kill(os.getppid(), signal.SIGKILL))
""",
    ),
    powerless(
        "kill-minus-one",
        "kill(-1) reaches nobody else",
        """
for number in (signal.SIGTERM, signal.SIGKILL):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        os.kill(-1, number)
    except OSError:
        pass
""",
    ),
    powerless(
        "kill-the-group",
        "no signal to a process group reaches the service or another call",
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for group in {0, os.getpgid(0), os.getpgid(os.getppid()) if os.getppid() else 0, 1}:
    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
        if number == signal.SIGKILL and group in (0, os.getpgid(0)):
            continue  # its own
        try:
            os.killpg(group, number)
        except OSError:
            pass
""",
    ),
    powerless(
        "handles-of-processes",
        "a process descriptor gives no way to signal or rob another process",
        """
for pid in {1, os.getppid()} - {0, os.getpid()}:
    handle = libc.syscall(NUMBERS["pidfd_open"], pid, 0)
    if handle < 0:
        continue
    call("pidfd_send_signal", handle, 0, None, 0)
    for fd in range(8):
        call("pidfd_getfd", handle, fd, 0, also=(errno.EBADF,))
""",
    ),
    powerless(
        "ptrace",
        "no process can be traced",
        """
for pid in {1, os.getppid()} - {0, os.getpid()}:
    call("ptrace", 16, pid, 0, 0)  # PTRACE_ATTACH
    call("ptrace", 0x4206, pid, 0, 0)  # PTRACE_SEIZE
""",
    ),
    powerless(
        "memory-of-others",
        "no memory is read from or written to another process",
        """
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(64)
here = Vector(ctypes.addressof(buffer), 64)
for pid in {1, os.getppid()} - {0, os.getpid()}:
    for name in ("process_vm_readv", "process_vm_writev"):
        call(name, pid, ctypes.byref(here), 1, ctypes.byref(here), 1, 0)
""",
    ),
    powerless(
        "limits-and-priority-of-others",
        "no other process's limits, priority or processors can be changed",
        """
import resource
for pid in {1, os.getppid()} - {0, os.getpid()}:
    refused(f"prlimit {pid}", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1)))
    refused(f"setpriority {pid}", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    refused(f"affinity {pid}", lambda: os.sched_setaffinity(pid, {0}))
""",
    ),
    powerless(
        "no-file-but-its-streams",
        "a call inherits its three streams and no other file",
        """
for fd in range(3, 4096):
    try:
        os.fstat(fd)
        breaches.append(f"fd {fd}")
    except OSError:
        pass
""",
    ),
    powerless(
        "code-of-other-calls",
        "the memory that a call inherits holds nothing of any other call",
        f"""
import gc, re
libc.prctl(4, 1, 0, 0, 0)
pattern = b"{SECRET}"
for one in gc.get_objects():
    for text in one.values() if type(one) is dict else one if type(one) in (list, tuple) else ():
        if isinstance(text, (str, bytes)) and len(text) < 1 << 20:
            data = text.encode("utf-8", "replace") if isinstance(text, str) else text
            if re.search(pattern, data):
                breaches.append("an object")
try:
    memory = open("/proc/self/mem", "rb", buffering=0)
    ranges = [line.split() for line in open("/proc/self/maps")]
except OSError:
    ranges = []
for place, rights, *_ in ranges:
    if not rights.startswith("rw"):
        continue
    start, end = (int(word, 16) for word in place.split("-"))
    while start < end:
        try:
            memory.seek(start)
            piece = memory.read(min(1 << 20, end - start))
        except (OSError, ValueError, OverflowError):
            break
        if re.search(pattern, piece):
            breaches.append("memory")
        start += len(piece) or end
""",
    ),
)
