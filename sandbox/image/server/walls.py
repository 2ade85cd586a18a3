"""The walls around calls: what a zygote puts up once, and every child inherits, and what each child adds.

The first kind costs a call nothing: limits that are the same for all, and the seccomp filter. The second is
Landlock, for levels that have neither a container nor a mount namespace.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import dataclass, field

from . import landlock, linux, seccomp

KIB, MIB = 1 << 10, 1 << 20
SAME_FOR_ALL = (
    (resource.RLIMIT_NOFILE, 256),
    (resource.RLIMIT_FSIZE, 64 * MIB),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_MSGQUEUE, 0),
    (resource.RLIMIT_MEMLOCK, 64 * KIB),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
FACTS = ("/proc/cpuinfo", "/proc/meminfo")


@dataclass
class Walls:
    """`shared_uid`: calls keep the uid that the service has. `readable`: paths that Landlock leaves open, None:
    no Landlock. `required`: a wall that cannot be put up ends the zygote."""

    shared_uid: bool
    readable: list[str] | None
    required: bool
    _rules: list[landlock.Rule] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Walls:
        return cls(**json.loads(text))

    def put_up(self) -> None:
        """In the zygote, before its first fork and with nothing of a call in it."""
        for which, limit in SAME_FOR_ALL:
            resource.setrlimit(which, (limit, limit))
        if not self.shared_uid:
            linux.prctl(linux.PR_SET_DUMPABLE, 0)  # a child could no longer write to its own /proc
        if self.readable is not None:
            self._rules = [
                *landlock.rules([*self.readable, *FACTS], landlock.READ),
                *landlock.rules(DEVICES, landlock.DEVICE),
            ]
        try:
            seccomp.install(self.shared_uid)
        except OSError as error:
            if self.required:
                raise
            print(f"no seccomp filter: {error}", file=sys.stderr, flush=True)

    def close_behind(self, box: str) -> None:
        """In the child, in its scratch directory and with its final uid."""
        if self.shared_uid:
            # While the first process of a call lives, what it leaves behind stays below it.
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
            linux.drop_capabilities()
        if self.readable is None:
            return
        own = [
            landlock.rule(box, landlock.SCRATCH),
            landlock.rule(f"/proc/{os.getpid()}", landlock.READ),
        ]
        landlock.restrict([*self._rules, *own])
