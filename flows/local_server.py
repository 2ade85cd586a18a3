"""A Prefect server of our own for one command, so that `rstar2 run` needs none.

It lives in its own session (Ctrl-C reaches the flow first) and dies with the command that started it. A
server that the user names in PREFECT_API_URL is used instead. Call before Prefect is imported: Prefect
reads its address then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import InfrastructureError, UserError
from tasks import processes

START_S = 120.0
STOP_S = 5.0


@contextlib.contextmanager
def prefect_server(runs_dir: Path) -> Iterator[None]:
    """A reachable Prefect server in PREFECT_API_URL for the time of the context."""
    given = os.environ.get("PREFECT_API_URL")
    if given:
        error = _health(given)
        if error is not None:
            raise UserError(
                f"the Prefect server at {given} (PREFECT_API_URL) does not answer: {error}\n"
                "start it (make serve), or unset PREFECT_API_URL to run without one"
            )
        yield
        return
    home = runs_dir / ".prefect"
    port = free_port()
    os.environ["PREFECT_API_URL"] = api_url(port)
    os.environ.setdefault("PREFECT_HOME", str(home))
    server = start(port, home)
    try:
        wait(server, port, home)
        yield
    finally:
        del os.environ["PREFECT_API_URL"]
        stop(server)


def api_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/api"


def stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def start(port: int, home: Path) -> subprocess.Popen[bytes]:
    """Start a server that is not ready yet."""
    home.mkdir(parents=True, exist_ok=True)
    environment = processes.child_environment() | {
        "PREFECT_HOME": str(home),
        # Its own database: two servers must not share the one of `make serve`.
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'local.db'}",
        "PREFECT_UI_ENABLED": "0",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    with (home / "local.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.local_server", str(port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait(server: subprocess.Popen[bytes], port: int, home: Path) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + START_S
    while _health(api_url(port)) is not None:
        if server.poll() is not None or time.monotonic() > deadline:
            raise InfrastructureError(f"Prefect's own server did not start; see {home / 'local.log'}")
        time.sleep(0.1)


def _health(url: str) -> str | None:
    """None if the server answers, else why not."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return None
    except (urllib.error.URLError, OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(port: int) -> None:
    processes.die_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import uvicorn

    uvicorn.run(
        "prefect.server.api.server:create_app", factory=True, host="127.0.0.1", port=port, log_level="error"
    )


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
