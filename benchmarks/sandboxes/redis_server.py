"""A Redis server for the peer: a real one, on a free port of this machine, keeping nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.sandboxes.children import Children
from sandbox.errors import UserError

START_S = 10.0


def ensure_program(directory: Path) -> str:
    """Path of a redis-server; Debian's is installed where there is none and it may be."""
    found = shutil.which("redis-server")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        # Debian's server program is the one that redis-tools brings (it goes by its name), and that package
        # starts no service.
        print("bench: installing redis-tools with apt-get", flush=True)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "redis-tools"]
        subprocess.run(
            install, capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
    found = found or shutil.which("redis-server")
    if found is None and (tool := shutil.which("redis-check-rdb")) is not None:
        link = directory / "redis-server"
        link.symlink_to(tool)
        found = str(link)
    if found is None:
        raise UserError(
            "code-judge's way of working needs a Redis server and there is no redis-server here; install it "
            "(Debian: apt-get install redis-server), or leave that column out: --without code-judge"
        )
    return found


def start(children: Children, program: str, directory: Path) -> str:
    """The address of a new server, one of `children`."""
    port = free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    children.spawn("redis", [program, *arguments, "--maxclients", "4096"], directory)
    wait_for_port(port, children)
    return f"redis://127.0.0.1:{port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, children: Children, within_s: float = START_S) -> None:
    give_up_at = time.monotonic() + within_s
    while time.monotonic() < give_up_at:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.05)
        if (end := children.ended()) is not None:
            raise UserError(f"a process that the benchmark started has ended: {end}")
    raise UserError(f"nothing listens on port {port} after {within_s:g} s")
