"""A zygote: an interpreter with its imports done, which forks one child for each call.

It never holds anything of a call (code and stdin arrive as files that only the child reads), so no call can
find another's data in the memory that it inherits. Two tiers: `std` forks fastest; `sci` has numpy and its
family loaded and warmed. A wrong choice of tier only costs the import.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys

from . import child, linux, strays
from .walls import Walls

# What programs import most; the list costs each fork a little, so it holds no package for its own sake.
STD = """
    argparse array ast asyncio base64 bisect calendar cmath collections concurrent.futures contextlib copy csv
    dataclasses datetime decimal enum fractions functools hashlib heapq inspect io itertools json math numbers
    operator os pathlib queue random re statistics string struct subprocess tempfile textwrap threading time
    traceback typing zlib
"""
SCI = "numpy scipy.optimize scipy.special scipy.integrate scipy.linalg sympy mpmath networkx pandas"


def preload(tier: str) -> list[str]:
    """Import what the tier promises; the names that are not installed."""
    missing = []
    for name in f"{STD} {SCI if tier == 'sci' else ''}".split():
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if tier == "sci" and "sympy" not in missing:
        warm_sympy()
    return missing


def warm_sympy() -> None:
    """Fill the caches that a first solve fills, so that no call pays for them."""
    sympy = importlib.import_module("sympy")
    x = sympy.Symbol("x")
    sympy.solve(x**3 - 6 * x**2 + 11 * x - 6, x)
    sympy.factorint(360360)
    sympy.integrate(x * sympy.sin(x), x)
    sympy.simplify((x**2 - 1) / (x - 1))


def address_space() -> int:
    """Bytes of address space of this process; a call's memory limit starts above it."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def serve(link: socket.socket, base_memory: int, wake_fd: int, walls: Walls) -> None:
    """Fork on each request; report each child's end with its wait status and resource usage."""
    slots: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([link.fileno(), wake_fd], [], [])
        if wake_fd in ready:
            os.read(wake_fd, 4096)
        if link.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(link, 65536, 4)
            if not data:
                return
            request = json.loads(data)
            slot = request["slot"]
            try:
                pid = os.fork()
            except OSError as error:
                link.send(json.dumps({"slot": slot, "failed": f"fork: {error}"}).encode())
                pid = -1
            if pid == 0:
                child.run(request, fds, base_memory, walls)
            for fd in fds:
                os.close(fd)
            if pid > 0:
                slots[pid] = slot
                link.send(json.dumps({"slot": slot, "pid": pid}).encode())
        report_ended(link, slots, walls)


def report_ended(link: socket.socket, slots: dict[int, int], walls: Walls) -> None:
    while slots:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        slot = slots.pop(pid, None)
        if slot is None:
            continue
        if walls.shared_uid:
            strays.end(keep=slots)
        cpu_s = usage.ru_utime + usage.ru_stime
        report = {
            "slot": slot,
            "wait": status,
            "cpu_s": cpu_s,
            "max_rss_mb": usage.ru_maxrss / 1024,
        }
        link.send(json.dumps(report).encode())


def main() -> None:
    tier, fd, walls = sys.argv[1], int(sys.argv[2]), Walls.parse(sys.argv[3])
    linux.die_with_parent()
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    missing = preload(tier)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    walls.put_up()
    # Collect before freezing: a child's collection must not touch, and so copy, the pages of the zygote.
    gc.collect()
    gc.disable()
    gc.freeze()
    link.send(json.dumps({"ready": tier, "missing": missing}).encode())
    serve(link, address_space(), wake_read, walls)


if __name__ == "__main__":
    main()
