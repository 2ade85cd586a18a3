"""The filter, run by an interpreter of classic BPF over every number of both architectures."""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.image.server import seccomp
from sandbox.image.server.seccomp import (
    CONDITIONAL,
    CONDITIONAL_FOR_SHARED_UID,
    DENIED,
    DENIED_TO_SHARED_UID,
    NEWEST,
)

MACHINES = ("x86_64", "aarch64")
HEADERS = {
    "x86_64": ("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h"),
    "aarch64": ("asm-generic/unistd.h",),
}
X32 = 0x40000000
FOREIGN = (0x40000003, 0x40000028, 0)  # i386, arm, none
CONFIGURATIONS = [(machine, shared) for machine in MACHINES for shared in (False, True)]


def verdict(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """0 if the call may run, else the error number that it gets."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, arch, 0xDEADBEEF, *padded)
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x15:
            at += yes if accumulator == operand else no
        elif code == 0x35:
            at += yes if accumulator >= operand else no
        elif code == 0x45:
            at += yes if accumulator & operand else no
        elif code == 0x06:
            if operand == 0x7FFF0000:
                return 0
            assert operand >> 16 == 5, f"neither ALLOW nor ERRNO: {operand:#x}"
            return operand & 0xFFFF
        else:
            raise AssertionError(f"unknown operation {code:#x} at step {at - 1}")


def judge(machine: str, shared: bool, number: int, *arguments: int) -> int:
    arch = seccomp.AUDIT_ARCH[machine]
    return verdict(seccomp.program(machine, shared), arch, number, arguments)


def number_of(name: str, machine: str) -> int:
    table = DENIED | DENIED_TO_SHARED_UID | CONDITIONAL | CONDITIONAL_FOR_SHARED_UID
    number = table[name][MACHINES.index(machine)]
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize(("machine", "shared"), CONFIGURATIONS)
def test_exactly_the_denied_numbers_are_denied(machine: str, shared: bool) -> None:
    column = MACHINES.index(machine)
    denied = DENIED | (DENIED_TO_SHARED_UID if shared else {})
    conditional = CONDITIONAL | (CONDITIONAL_FOR_SHARED_UID if shared else {})
    refused = {numbers[column] for numbers in denied.values()} - {None}
    open_question = {entry[column] for entry in conditional.values()}
    assert not refused & open_question
    program, arch = seccomp.program(machine, shared), seccomp.AUDIT_ARCH[machine]
    for number in set(range(2000)) - open_question:
        expected = errno.ENOSYS if number > NEWEST else errno.EPERM if number in refused else 0
        assert verdict(program, arch, number) == expected, number


@pytest.mark.parametrize(("machine", "shared"), CONFIGURATIONS)
@given(number=st.integers(-(2**31), 2**31 - 1), foreign=st.sampled_from(FOREIGN))
def test_other_calling_conventions_are_refused(
    machine: str, shared: bool, number: int, foreign: int
) -> None:
    assert verdict(seccomp.program(machine, shared), foreign, number) == errno.ENOSYS
    if not 0 <= number <= NEWEST:
        assert judge(machine, shared, number) == errno.ENOSYS


def test_x32_is_refused() -> None:
    assert {judge("x86_64", False, X32 + number) for number in range(600)} == {errno.ENOSYS}


@pytest.mark.parametrize("machine", MACHINES)
@given(flags=st.integers(0, 2**32 - 1))
def test_clone_makes_no_namespace(machine: str, flags: int) -> None:
    new_namespace = any(
        flags & bit
        for bit in (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)  # CLONE_NEW*
    )
    expected = errno.EPERM if new_namespace else 0
    assert judge(machine, False, number_of("clone", machine), flags) == expected
    assert judge(machine, False, number_of("clone3", machine), flags) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
@given(
    family=st.integers(0, 50),
    kind=st.integers(0, 15),
    flags=st.sampled_from([0, 0o4000, 0o2000000, 0o2004000]),
)
def test_only_connected_unix_pairs(machine: str, family: int, kind: int, flags: int) -> None:
    expected = 0 if family == 1 and kind in (1, 5) else errno.EPERM
    assert judge(machine, False, number_of("socketpair", machine), family, kind | flags) == expected
    assert judge(machine, False, number_of("socket", machine), family, kind) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_personality_can_only_be_asked(machine: str) -> None:
    number = number_of("personality", machine)
    assert judge(machine, False, number, 0xFFFFFFFF) == 0
    assert {judge(machine, False, number, 1 << bit) for bit in range(32)} == {errno.EPERM}


@pytest.mark.parametrize("machine", MACHINES)
@given(pid=st.integers(1, 2**31 - 1))
def test_shared_uid_reaches_no_other_process(machine: str, pid: int) -> None:
    for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setattr"):
        number = number_of(name, machine)
        assert judge(machine, True, number, 0) == 0
        assert judge(machine, True, number, pid) == errno.EPERM
        assert judge(machine, False, number, pid) == 0
    for name, itself in (("setpriority", 0), ("ioprio_set", 1)):
        number = number_of(name, machine)
        assert judge(machine, True, number, itself, 0) == 0
        for what, who in ((itself, pid), (itself + 1, 0), (itself + 1, pid)):
            assert judge(machine, True, number, what, who) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_shared_uid_keeps_terminal_ioctls_only(machine: str) -> None:
    number = number_of("ioctl", machine)
    for request in (0x5401, 0x5413, 0x541B, 0x5450, 0x5451):  # TCGETS ... FIOCLEX
        assert judge(machine, True, number, 1, request) == 0
    for request in (0x40086602, 0x401C5820, 0x40806685):  # FS_IOC_SETFLAGS, FSSETXATTR, VERITY
        assert judge(machine, True, number, 1, request) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    found = [path for name in HEADERS[machine] if (path := Path("/usr/include", name)).exists()]
    if not found:
        pytest.skip(f"no kernel header for {machine} (package linux-libc-dev)")
    pattern = re.compile(r"#define __NR(?:3264)?_(\w+)\s+(\d+)")
    header = {name: int(number) for name, number in pattern.findall(found[0].read_text())}
    column = MACHINES.index(machine)
    tables = DENIED | DENIED_TO_SHARED_UID | CONDITIONAL | CONDITIONAL_FOR_SHARED_UID
    checked = {name for name in tables if name in header}
    assert {name: tables[name][column] for name in checked} == {
        name: header[name] for name in checked
    }
    assert len(checked) > 90


def test_unknown_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="no seccomp filter for vax"):
        seccomp.program("vax", False)


def test_installed_filter_refuses_and_leaves_the_rest() -> None:
    if os.uname().machine not in MACHINES:
        pytest.skip(f"no filter for {os.uname().machine}")
    code = """
import asyncio, ctypes, errno, os, socket, subprocess, sys, tempfile
from sandbox.image.server import seccomp
seccomp.install(shared_uid=False)
def error(function, *arguments):
    try:
        function(*arguments)
    except OSError as problem:
        return problem.errno
assert error(socket.socket) == errno.EPERM
assert error(socket.socket, socket.AF_UNIX) == errno.EPERM
assert error(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM) == errno.EPERM
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000) == -1 and ctypes.get_errno() == errno.EPERM
assert libc.ptrace(0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM
left, right = socket.socketpair()
left.send(b"x")
assert right.recv(1) == b"x"
asyncio.run(asyncio.sleep(0))
assert subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True).stdout == b"7\\n"
with open("/proc/self/status") as file:
    print([line for line in file if line.startswith(("Seccomp:", "NoNewPrivs:"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['NoNewPrivs:\\t1\\n', 'Seccomp:\\t2\\n']\n"
