"""What a dispatcher tells a zygote of a call: numbers of a fixed layout, which only the child takes apart.

A zygote's own work between two forks is copied by the next one page for page, so it should be as little as can be.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

LAYOUT = struct.Struct("=iqq?iii")
SLOT = struct.Struct("=i")  # its first field
NOBODY = -1


class Order(NamedTuple):
    slot: int
    uid: int  # NOBODY: the call keeps the service's
    size: int  # bytes of the program
    cell: bool  # the program is a cell and those before it; else a script
    cpu_s: int
    memory_mb: int
    tasks: int

    @classmethod
    def of(cls, slot: int, uid: int | None, size: int, mode: str, limits: dict[str, Any]) -> Order:
        cpu_s = math.ceil(limits["cpu_s"])
        who = NOBODY if uid is None else uid
        return cls(slot, who, size, mode == "cell", cpu_s, limits["memory_mb"], limits["tasks"])

    @classmethod
    def unpack(cls, data: bytes) -> Order:
        return cls._make(LAYOUT.unpack(data))

    def pack(self) -> bytes:
        return LAYOUT.pack(*self)
