"""Programs that ask the kernel for what a call may not have: namespaces, mounts, tracing, its rarer interfaces."""

from __future__ import annotations

from sandbox.outcome import Status
from sandbox.selfcheck.model import PRELUDE, VERDICT, Program, powerless

NEW = {
    "NEWUSER": 0x10000000,
    "NEWNS": 0x20000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
    "NEWIPC": 0x8000000,
    "NEWUTS": 0x4000000,
    "NEWCGROUP": 0x2000000,
    "NEWTIME": 0x80,
}

PROGRAMS = (
    powerless(
        "unshare",
        "no new namespace can be entered",
        f"""
for name, flag in {NEW!r}.items():
    call("unshare", flag)
    call("unshare", flag | {NEW["NEWUSER"]})
""",
    ),
    powerless(
        "clone-with-new-user",
        "no child can be made in a new namespace",
        f"""
for flag in {list(NEW.values())!r}[:-1]:
    if call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)
    if call("clone", flag | {NEW["NEWUSER"]} | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)
""",
    ),
    powerless(
        "clone3-with-new-user",
        "nor by the call whose flags a filter cannot read",
        f"""
class Arguments(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "pidfd", "child", "parent", "exit_signal", "stack",
                "stack_size", "tls", "set_tid", "set_tid_size", "cgroup")]
for flag in {list(NEW.values())!r}:
    arguments = Arguments(flags=flag | {NEW["NEWUSER"]}, exit_signal=signal.SIGCHLD)
    if call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments)) == 0:
        os._exit(0)
""",
    ),
    powerless(
        "join-namespaces",
        "no other process's namespace can be joined",
        """
for pid in (1, os.getppid() or 1):
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        try:
            fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        except OSError:
            continue
        if pid != os.getpid():
            call("setns", fd, 0)
call("setns", 0, 0)
""",
    ),
    powerless(
        "mount",
        "nothing can be mounted, by the old interface or the new",
        """
os.makedirs("m", exist_ok=True)
for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup", b"overlay", b"devpts", b"mqueue"):
    call("mount", b"none", b"m", kind, 0, None)
call("mount", b"/", b"m", None, 4096, None)
call("mount", None, b"/", None, 32, None)  # remount
call("umount2", b"/proc", 2)
call("pivot_root", b".", b"m")
call("fsopen", b"tmpfs", 0)
call("open_tree", -100, b"/", 1)
call("mount_setattr", -100, b"/", 0, None, 0)
""",
    ),
    powerless(
        "chroot",
        "the root cannot be changed",
        'os.makedirs("r", exist_ok=True)\ncall("chroot", b"r")\ncall("chroot", b"/")',
    ),
    powerless(
        "device-files",
        "no device can be made",
        """
import stat
for name, kind, device in (("disk", stat.S_IFBLK, os.makedev(8, 0)), ("mem", stat.S_IFCHR, os.makedev(1, 1)),
                           ("kvm", stat.S_IFCHR, os.makedev(10, 232)), ("null", stat.S_IFCHR, os.makedev(1, 3))):
    refused(f"mknod {name}", lambda: os.mknod(name, kind | 0o666, device))
""",
    ),
    powerless(
        "devices",
        "no device but the harmless ones can be opened",
        """
harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "stdin", "stdout", "stderr", "fd"}
for name in names("/dev") or ("mem", "kmsg", "kvm", "fuse", "vda", "sda", "loop0", "loop-control", "net/tun"):
    if name in harmless or os.path.isdir(f"/dev/{name}"):
        continue
    for flag in (os.O_RDONLY, os.O_WRONLY):
        refused(f"/dev/{name}", lambda: os.open(f"/dev/{name}", flag | os.O_NONBLOCK))
""",
    ),
    powerless(
        "bpf",
        "no program is loaded into the kernel",
        'for command in range(4):\n    call("bpf", command, None, 0)',
    ),
    powerless(
        "io-uring",
        "no ring that would pass by a filter of system calls",
        'buffer = ctypes.create_string_buffer(120)\ncall("io_uring_setup", 4, buffer)',
    ),
    powerless(
        "keyrings",
        "no key can be stored, found or passed on",
        """
call("add_key", b"user", b"name", b"value", 5, -3)
call("request_key", b"user", b"name", None, -3)
for command in (0, 1, 6, 11):
    call("keyctl", command, -3, 0, 0, 0)
""",
    ),
    powerless(
        "performance-counters",
        "no performance counters of anybody",
        """
attributes = ctypes.create_string_buffer(128)
attributes[4:8] = (128).to_bytes(4, "little")
for pid in (0, -1, 1):
    call("perf_event_open", attributes, pid, 0 if pid == -1 else -1, -1, 0)
""",
    ),
    powerless(
        "page-faults-by-hand",
        "no handling of page faults in user space",
        'call("userfaultfd", 0)\ncall("userfaultfd", 1)',
    ),
    powerless(
        "personality",
        "no old behaviour of the kernel can be asked for",
        """
for persona in (0x0040000, 0x0100000, 0x0400000, 0x0040000 | 0x0100000):  # no random layout, read implies exec
    call("personality", persona)
""",
    ),
    powerless(
        "administration",
        "none of the machine's own affairs: modules, kernel, clock, names, logs",
        """
data = ctypes.create_string_buffer(64)
call("init_module", data, 64, b"")
call("finit_module", 0, b"", 0)
call("delete_module", b"nothing", 0)
call("kexec_load", 0, 0, None, 0)
call("reboot", 0, 0, 0, None)
call("swapon", b"/nothing", 0)
call("settimeofday", data, None)
call("clock_settime", 0, data)
call("sethostname", b"x", 1)
call("syslog", 3, data, 64)
call("acct", b"/nothing")
call("open_by_handle_at", -100, data, 0)
call("fanotify_init", 0, 0)
call("quotactl", 0, None, 0, None)
""",
    ),
    powerless(
        "looking-into-processes",
        "no comparing and advising of other processes",
        """
if os.getppid():
    call("kcmp", os.getppid(), os.getppid(), 0, 0, 0)
call("process_madvise", 0, None, 0, 4, 0)
""",
    ),
    Program(
        "system-calls-of-32-bit-programs",
        "calls in another architecture's numbering are refused as well",
        PRELUDE
        + """
import mmap
def alien(number, *arguments):
    code = mmap.mmap(-1, 4096, prot=7)
    # mov eax, edi; mov ebx, esi; mov ecx, edx; xor edx, edx; int 0x80, keeping rbx
    code.write(bytes.fromhex("5389f889f389d131d2cd805bc3"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)(address)(number, *arguments)
if os.uname().machine == "x86_64":
    for name, number, first, second in (("unshare", 310, 0x10000000, 0), ("socket", 359, 2, 1), ("socket", 359, 1, 1)):
        if os.fork() == 0:
            os._exit(0 if alien(number, first, second) < 0 else 1)
        if os.wait()[1] == 256:
            breaches.append(f"int 0x80 {name}")
    for name, number, first, second in (("unshare", 272, 0x10000000, 0), ("socket", 41, 2, 1)):
        if libc.syscall(ctypes.c_long(0x40000000 | number), first, second, 0) >= 0:
            breaches.append(f"x32 {name}")
"""
        + VERDICT,
        status=(Status.OK, Status.SIGNAL),
        lacks=("int 0x80", "x32"),
    ),
)
