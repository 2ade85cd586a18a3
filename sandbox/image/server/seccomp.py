"""The system calls that a program has no use for, refused by a seccomp filter: a classic BPF program.

A list of what is denied, on top of Docker's list of what is allowed and alone at the other levels. Invariants:
a refusal is an error number and never a kill, so a library that probes goes on; numbers beyond the newest that
this list was made for do not exist, and neither do those of another architecture's calling convention. The
program searches by halves: the kernel runs it once for every number when it is installed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from . import linux

NEWEST = 462  # mseal; above 423 the numbers are the same everywhere

# Kernel objects that outlive a call (IPC), other processes, the machine, and what has a record of exploits.
# Numbers are (x86_64, aarch64); None: that architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_add_watch": (254, 27),
    "vmsplice": (278, 75),
    "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vhangup": (153, 58),
    "sysfs": (139, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "socket": (41, 198),
}
# Where calls have their owner's uid, these would reach the owner's files and processes past Landlock.
DENIED_TO_SHARED_UID: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
AT_NUMBER, AT_ARCH, AT_ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
LOAD, AND = 0x20, 0x54  # BPF_LD|W|ABS, BPF_ALU|AND|K
EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x15, 0x35, 0x45, 0x06  # BPF_JMP|JEQ, JGE, JSET; BPF_RET
ERRNO, ALLOWED = 0x00050000, 0x7FFF0000
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET, SOCK_TYPE = 1, 1, 5, 0xF
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
PR_SET_SECCOMP, MODE_FILTER = 22, 2


@dataclass(frozen=True)
class Step:
    """One BPF instruction: operation, steps to skip where a test holds and where it does not, operand."""

    code: int
    yes: int
    no: int
    operand: int


Block = tuple[Step, ...]  # decides by itself: it never runs past its end
ALLOW: Block = (Step(RETURN, 0, 0, ALLOWED),)
REFUSE: Block = (Step(RETURN, 0, 0, ERRNO | errno.EPERM),)
ABSENT: Block = (Step(RETURN, 0, 0, ERRNO | errno.ENOSYS),)


def argument(index: int) -> Step:
    """Load the low half of an argument; all that is tested here are ints to the kernel."""
    return Step(LOAD, 0, 0, AT_ARGUMENTS + 8 * index)


def only(*wanted: tuple[int, int]) -> Block:
    """Allow where each (argument index, value) holds."""
    block: Block = ()
    for index, value in wanted:
        block += (argument(index), Step(EQUAL, 1, 0, value), *REFUSE)
    return block + ALLOW


# clone3 takes its flags through a pointer, which no filter can follow; libraries then fall back to clone.
NO_NAMESPACES: Block = (argument(0), Step(ANY_BIT, 0, 1, NEW_NAMESPACES), *REFUSE, *ALLOW)
# A datagram pair could be connected to somebody else's socket afterwards; the other kinds cannot.
CONNECTED_PAIR: Block = (
    argument(0),
    Step(EQUAL, 1, 0, AF_UNIX),
    *REFUSE,
    argument(1),
    Step(AND, 0, 0, SOCK_TYPE),
    Step(EQUAL, 1, 0, SOCK_STREAM),
    Step(EQUAL, 0, 1, SOCK_SEQPACKET),
    *ALLOW,
    *REFUSE,
)
TERMINAL_IOCTLS: Block = (  # what isatty() and descriptors need; others change files that are open for reading
    argument(1),
    Step(AND, 0, 0, 0xFFFFFF00),
    Step(EQUAL, 1, 0, 0x5400),
    *REFUSE,
    *ALLOW,
)
CONDITIONAL: dict[str, tuple[int, int, Block]] = {
    "clone": (56, 220, NO_NAMESPACES),
    "clone3": (435, 435, ABSENT),
    "socketpair": (53, 199, CONNECTED_PAIR),
    "personality": (135, 92, only((0, 0xFFFFFFFF))),  # the query
}
CONDITIONAL_FOR_SHARED_UID: dict[str, tuple[int, int, Block]] = {
    "ioctl": (16, 29, TERMINAL_IOCTLS),
    "prlimit64": (302, 261, only((0, 0))),  # 0: the caller itself
    "sched_setaffinity": (203, 122, only((0, 0))),
    "sched_setparam": (142, 118, only((0, 0))),
    "sched_setscheduler": (144, 119, only((0, 0))),
    "sched_setattr": (314, 274, only((0, 0))),
    "setpriority": (141, 140, only((0, PRIO_PROCESS), (1, 0))),
    "ioprio_set": (251, 30, only((0, IOPRIO_WHO_PROCESS), (1, 0))),
}


def program(machine: str, shared_uid: bool) -> bytes:
    """The filter for `machine` (as os.uname() names it), assembled."""
    if machine not in AUDIT_ARCH:
        raise OSError(
            errno.ENOSYS,
            f"no seccomp filter for {machine}; there is one for {', '.join(AUDIT_ARCH)}",
        )
    column = list(AUDIT_ARCH).index(machine)
    denied = DENIED | (DENIED_TO_SHARED_UID if shared_uid else {})
    conditional = CONDITIONAL | (CONDITIONAL_FOR_SHARED_UID if shared_uid else {})
    blocks = {
        number: REFUSE for numbers in denied.values() if (number := numbers[column]) is not None
    }
    blocks |= {entry[column]: entry[2] for entry in conditional.values()}  # type: ignore[misc]
    steps = (
        Step(LOAD, 0, 0, AT_ARCH),
        Step(EQUAL, 1, 0, AUDIT_ARCH[machine]),
        *ABSENT,
        Step(LOAD, 0, 0, AT_NUMBER),
        *_search(_ranges(blocks)),
    )
    return b"".join(struct.pack("=HBBI", s.code, s.yes, s.no, s.operand) for s in steps)


def _ranges(blocks: dict[int, Block]) -> list[tuple[int, Block]]:
    """(first number, what decides from there on), ascending from 0, neighbours different."""
    ranges: list[tuple[int, Block]] = []
    for number in range(NEWEST + 1):
        block = blocks.get(number, ALLOW)
        if not ranges or ranges[-1][1] != block:
            ranges.append((number, block))
    return [*ranges, (NEWEST + 1, ABSENT)]


def _search(ranges: Sequence[tuple[int, Block]]) -> Block:
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    lower, upper = _search(ranges[:middle]), _search(ranges[middle:])
    return (Step(AT_LEAST, len(lower), 0, ranges[middle][0]), *lower, *upper)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def install(shared_uid: bool) -> None:
    """Put this process, and all that it forks or becomes, behind the filter for good."""
    steps = program(os.uname().machine, shared_uid)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    filled = _Program(len(steps) // 8, steps)
    linux.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(filled))
