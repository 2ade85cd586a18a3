"""Runs as PID 1 of fresh namespaces: builds a private root, gives up capabilities, becomes the server.

`unshare` has made the namespaces (pid, mount, net, ipc, uts, and user at level `userns`). The new root is a
tmpfs with read-only binds of the system's programs and of this interpreter, a few devices, a /proc of the
own pid namespace and one bounded tmpfs a slot; nothing else of the host is visible. Argument: JSON of JailSpec.
Standard library only: it runs with whatever interpreter the server will run with.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
AT_RECURSIVE, AT_FDCWD = 0x8000, -100
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 23, 24, 38
CAP_SETGID, CAP_SETUID = 6, 7

SYSTEM_DIRS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_FILES = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
DEVICES = ("null", "zero", "full", "random", "urandom")
PASSWD = "root:x:0:0:root:/:/bin/sh\n"

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class JailSpec:
    """What the jail contains."""

    shared_dir: str  # host directory for socket and log
    shared_inside: str
    code_dir: str  # host directory of the server
    code_inside: str
    server: list[str]  # the interpreter's arguments that start it there
    box_root: str
    scratch: list[list[Any]]  # a mount option string and a directory for each slot
    visible: list[str]  # host directories of the interpreter, bound at their own paths
    settings: dict[str, Any]  # for pid1.py
    groups: list[str] = field(default_factory=list)  # control groups to enter
    oom_file: tuple[str, str] | None = None  # where the kernel counts kills, on the host and inside


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    result = _LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount {source or kind} on {target}")


class _MountAttr(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")
    ]


def set_read_only(path: str, recursive: bool) -> None:
    attr = _MountAttr(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    result = _LIBC.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, ctypes.byref(attr), ctypes.sizeof(attr)
    )
    _check(result, f"make {path} read-only")


def bind(source: str, target: str, read_only: bool = True) -> None:
    """Show the host's `source` at `target` of the new root."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        set_read_only(target, recursive=True)


def build_root(root: str, spec: JailSpec) -> None:
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "size=4m,mode=0755")
    for name in SYSTEM_DIRS:
        source = Path("/", name)
        if source.is_symlink():
            os.symlink(os.readlink(source), f"{root}/{name}")
        elif source.is_dir():
            bind(str(source), f"{root}/{name}")
    for path in spec.visible:
        bind(path, root + path)
    for name in ETC_FILES:
        if os.path.exists(f"/etc/{name}"):
            bind(os.path.realpath(f"/etc/{name}"), f"{root}/etc/{name}")
    os.makedirs(f"{root}/etc", exist_ok=True)
    Path(root, "etc/passwd").write_text(PASSWD)
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", read_only=False)
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(f"{root}/proc")
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if spec.oom_file is not None:
        bind(spec.oom_file[0], root + spec.oom_file[1])
    os.makedirs(f"{root}/tmp", exist_ok=True)  # an interpreter under /tmp has made it already
    for options, directory in spec.scratch:
        os.makedirs(root + directory)
        mount("tmpfs", root + directory, "tmpfs", MS_NOSUID | MS_NODEV, options)
    bind(spec.code_dir, f"{root}{spec.code_inside}/server")
    os.makedirs(os.path.dirname(root + spec.shared_inside))
    os.chmod(os.path.dirname(root + spec.shared_inside), 0o700)
    bind(spec.shared_dir, root + spec.shared_inside, read_only=False)


def enter_root(root: str) -> None:
    os.chdir(root)
    _check(_LIBC.syscall(SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(_LIBC.umount2(b".", MNT_DETACH), "detach the host's root")
    os.chdir("/")
    set_read_only("/", recursive=False)


def drop_capabilities() -> None:
    """Keep only what gives a call its own uid; the exec that follows makes it so."""
    for capability in range(64):
        if (
            capability in (CAP_SETUID, CAP_SETGID)
            or _LIBC.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) != 1
        ):
            continue
        _check(_LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), f"drop capability {capability}")
    _check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")


def main() -> None:
    spec = JailSpec(**json.loads(sys.argv[1]))
    for group in spec.groups:
        Path(group, "cgroup.procs").write_text("0")  # 0: this process
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    root = os.path.join(spec.shared_dir, "root")
    shutil.rmtree(root, ignore_errors=True)
    os.mkdir(root)
    build_root(root, spec)
    enter_root(root)
    drop_capabilities()
    os.chdir(spec.code_inside)
    os.execve(
        sys.executable,
        [sys.executable, *spec.server, json.dumps(spec.settings)],
        {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
    )


if __name__ == "__main__":
    main()
