"""Programs that write where they may not, and read what is not theirs."""

from __future__ import annotations

from sandbox.selfcheck.model import powerless

PROGRAMS = (
    powerless(
        "write-elsewhere",
        "nothing outside scratch can be written, by name",
        """
for path in ("/x", "/etc/x", "/etc/passwd", "/etc/ld.so.preload", "/tmp/x", "/var/tmp/x", "/usr/x", "/usr/local/x",
             "/opt/sandbox/x", "/opt/sandbox/server/x", "/dev/shm/x", "/dev/x", "/run/x", "/run/lock/x", "/box/x",
             "/home/x", "/root/x", "/srv/x", "/mnt/x", "/proc/x", "/sys/x", sys.executable, os.__file__, json.__file__):
    refused(path, lambda: open(path, "ab"))
""",
    ),
    powerless(
        "write-anywhere",
        "no directory outside scratch is open to a call",
        """
home = os.path.realpath(os.environ["HOME"])
for top, directories, _ in os.walk("/"):
    if top.count("/") >= 3:
        directories.clear()
    directories[:] = [one for one in directories if os.path.join(top, one) not in ("/proc", "/sys", home)]
    refused(top, lambda: open(os.path.join(top, ".probe"), "x"))
""",
    ),
    powerless(
        "kernel-settings",
        "no file of /proc or /sys changes the machine",
        """
for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory",
             "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/self/uid_map", "/proc/1/oom_score_adj",
             "/proc/irq/0/smp_affinity", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state",
             "/sys/kernel/uevent_helper", "/sys/module/kernel/parameters/panic", "/proc/sys/kernel/modprobe"):
    refused(path, lambda: open(path, "w").write("0"))
""",
    ),
    powerless(
        "control-groups",
        "no control group can be left or changed",
        """
for top, directories, files in os.walk("/sys/fs/cgroup"):
    if top.count("/") >= 6:
        directories.clear()
    for name in files:
        if name in ("cgroup.procs", "tasks", "memory.limit_in_bytes", "memory.max", "release_agent", "pids.max",
                    "notify_on_release", "cpu.shares", "cgroup.kill"):
            refused(f"{top}/{name}", lambda: open(f"{top}/{name}", "w").write("0"))
    refused(top, lambda: os.mkdir(f"{top}/own"))
""",
    ),
    powerless(
        "secrets-of-the-machine",
        "no file that is the owner's alone can be read",
        """
for path in ("/etc/shadow", "/etc/gshadow", "/root/.ssh", "/root/.cache", "/var/run/docker.sock",
             "/run/docker.sock", "/var/lib/docker", "/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg",
             "/proc/1/root/etc", "/run/private", "/run/private/sock"):
    refused(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
for home in ("/root", *(f"/home/{name}" for name in names("/home"))):
    inside = [os.path.join(home, name) for name in names(home)]
    interpreter = (sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), os.path.realpath(os.curdir))
    breaches += [path for path in inside if not any(one.startswith(path) for one in interpreter)]
""",
    ),
    powerless(
        "service-directory",
        "the directory with the service's socket is closed",
        """
socket_path = "@ENDPOINT@"
if socket_path.startswith("/"):
    refused("its directory", lambda: os.listdir(os.path.dirname(socket_path)))
""",
    ),
    powerless(
        "scratch-of-neighbours",
        "no other call's scratch can be seen into",
        """
own = os.path.realpath(".")
for name in names(os.path.dirname(own)) or map(str, range(64)):
    path = os.path.join(os.path.dirname(own), name)
    if path != own:
        refused(path, lambda: os.listdir(path))
        refused(path, lambda: open(f"{path}/x", "w"))
""",
    ),
    powerless(
        "links-out-of-scratch",
        "a link to a closed file opens nothing, and no hard link to others' files can be made",
        """
os.symlink("/etc/shadow", "shadow")
refused("through a link", lambda: open("shadow").read())
refused("hard link", lambda: os.link("/etc/passwd", "passwd"))
refused("hard link to the interpreter", lambda: os.link(os.path.realpath(sys.executable), "python"))
os.symlink("/", "root")
refused("write through a link", lambda: open("root/etc/x", "w"))
""",
    ),
    powerless(
        "interpreter-overwritten",
        "neither the interpreter nor a package can be changed for later calls",
        """
import numpy
for path in ("/proc/self/exe", sys.executable, numpy.__file__, os.path.dirname(numpy.__file__) + "/x", os.__file__):
    refused(path, lambda: open(path, "r+b" if os.path.exists(path) else "wb"))
    refused(f"chmod {path}", lambda: os.chmod(path, 0o777))
    refused(f"remove {path}", lambda: os.remove(path))
""",
    ),
    powerless(
        "scratch-itself",
        "the scratch directory cannot be moved away or given away",
        """
box = os.path.realpath(".")
refused("rename", lambda: os.rename(box, box + "-moved"))
refused("rmdir", lambda: os.rmdir(box))
refused("chown", lambda: os.chown(box, 0, 0))
refused("replace", lambda: os.symlink("/etc", box + "-link"))
""",
    ),
    powerless(
        "way-up-by-descriptor",
        "an open directory is no way past the walls",
        """
root = os.open("/", os.O_PATH | os.O_DIRECTORY)
refused("write by descriptor", lambda: os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=root))
here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
refused("above scratch", lambda: os.open("../x", os.O_WRONLY | os.O_CREAT, dir_fd=here))
refused("far above", lambda: os.open("../" * 20 + "etc/shadow", os.O_RDONLY, dir_fd=here))
os.chdir("/")
refused("far above", lambda: open("../" * 20 + "etc/shadow"))
""",
    ),
)
