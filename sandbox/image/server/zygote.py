"""A zygote: an interpreter with its imports done, which forks one child for each call.

It never holds anything of a call (code and stdin arrive as files that only the child reads), so no call can find
another's data in the memory that it inherits. The child's parent is the dispatcher, which therefore learns of its
end from the kernel; all that is left to do here is to fork and to say the pid.

Arguments: the tier, the link to the dispatcher, the pipe for pids, the directory of the scratches, the walls, and a
mark by which its children are known for its own.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import sys
import threading
from array import array

from . import child, imports, linux, program
from .order import LAYOUT, SLOT, Order
from .walls import Walls

PID = struct.Struct("=ii")  # slot, pid


def address_space() -> int:
    """Bytes of address space of this process; a call's memory limit starts above it."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def serve(link: socket.socket, pids: int, box_root: str, walls: Walls) -> None:
    """Fork on each request."""
    fork = linux.SiblingFork()
    base_memory = address_space()
    room = socket.CMSG_SPACE(4 * array("i").itemsize)
    while True:
        data, ancillary, _, _ = link.recvmsg(LAYOUT.size, room)
        if not data:
            return
        fds = array("i", ancillary[0][2])
        try:
            pid = fork()
        except OSError as error:
            failed = {"slot": SLOT.unpack_from(data)[0], "failed": str(error)}
            link.send(json.dumps(failed).encode())
            pid = -1
        if pid == 0:
            after_fork()
            order = Order.unpack(data)
            child.run(order, f"{box_root}/{order.slot}", fds.tolist(), base_memory, walls)
        if pid > 0:
            os.write(pids, data[: SLOT.size] + SLOT.pack(pid))
        for fd in fds:
            os.close(fd)


def after_fork() -> None:
    """What the library's own handlers would do that matters to a program."""
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]


def main() -> None:
    tier, link_fd, pids = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    box_root, walls = sys.argv[4], Walls.parse(sys.argv[5])
    linux.die_with_parent()
    link = socket.socket(fileno=link_fd)
    for fd in (link_fd, pids):
        os.set_inheritable(fd, False)
    missing = imports.load(tier)
    os.environ["HOME"] = os.environ["TMPDIR"] = "/"  # each child replaces them
    program.prepare()
    if not walls.shared_uid:
        os.setgroups([])
    walls.put_up()
    # Collect before freezing: a child's collection must not touch, and so copy, the pages of the zygote.
    gc.collect()
    gc.disable()
    gc.freeze()
    linux.huge_pages()
    link.send(json.dumps({"ready": tier, "missing": missing}).encode())
    serve(link, pids, box_root, walls)


if __name__ == "__main__":
    main()
