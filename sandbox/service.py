"""The owner of a sandbox: starts the gateway process and everything under it, and stops it all again.

    with Sandbox.start(SandboxConfig(), runtime_dir) as sandbox:
        client = SandboxClient(sandbox.endpoint)

The gateway is a process of its own, so several client processes share one sandbox through its socket. It
lives no longer than its owner: it watches its parent, and the container behind it holds a lease that only
a living gateway renews, so that `kill -9` of either leaves nothing running. A gateway that dies while its
owner lives is started again at the same endpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from sandbox import owner
from sandbox.box import BoxError
from sandbox.config import Isolation, SandboxConfig
from sandbox.probe import resolve

SOCKET = "gateway.sock"
TOKEN = "http.token"
OWNER = "owner"
TEMPORARY = "rstar2-sandbox-"
LONGEST_DIR = 80  # bytes: with the longest socket name behind it, a path stays within AF_UNIX's 107
STOP_S = 15.0
LOOK_S = 0.5
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 10.0


class Sandbox:
    """A running sandbox; a context manager, or `start()` and `stop()`."""

    def __init__(
        self, config: SandboxConfig, isolation: Isolation, runtime_dir: Path, temporary: bool
    ) -> None:
        self.endpoint = str(runtime_dir / SOCKET)
        """Where SandboxClient connects: the path of a unix socket."""
        self.http_url: str | None = None
        """Where HTTP clients connect, if `config.http` is set; it outlives the gateway process too."""
        self.isolation: str = isolation
        """The level that calls really run at (docker, ns-root, userns, none)."""
        self._config = config
        self._runtime_dir = runtime_dir
        self._temporary = temporary
        self._stopping = threading.Event()
        self._process = self._spawn()
        self._keeper = threading.Thread(target=self._keep, name="sandbox-owner", daemon=True)
        self._keeper.start()

    @classmethod
    def start(
        cls,
        config: SandboxConfig,
        runtime_dir: Path | None = None,
        http_token: str | None = None,
    ) -> Sandbox:
        """Start a sandbox; returns once it has answered. Sockets and logs go to `runtime_dir`, or to a
        temporary directory if that is None or its path is too long for a socket; `http_token`, which
        HTTP clients must send then, is kept there too. BoxError says what failed.
        """
        isolation = resolve(config)
        directory, temporary = _private_dir(runtime_dir)
        try:
            if http_token is not None:
                token_file = directory / TOKEN
                token_file.touch(mode=0o600)
                token_file.write_text(http_token)
                config = config.model_copy(update={"http_token_file": token_file})
            return cls(config, isolation, directory, temporary)
        except (
            BaseException
        ):  # Ctrl-C while it starts must not leave the directory either; raised again below
            if temporary:
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def stop(self) -> None:
        """Stop the gateway and the container, and wait until both are gone. May be called twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._keeper.join()
        _end(self._process)
        if self._temporary:
            shutil.rmtree(self._runtime_dir, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def gateway_pid(self) -> int:
        return self._process.pid

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start a gateway and wait for the one line that it says once it is ready or has failed."""
        command = [
            sys.executable,
            "-m",
            "sandbox",
            "gateway",
            self.isolation,
            str(self._runtime_dir),
        ]
        command += [str(os.getpid()), self._config.model_dump_json()]
        command += ["--temporary"] if self._temporary else []
        package_dir = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, [package_dir, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C for the owner must not reach it before the owner's clients
            env={**os.environ, "PYTHONPATH": path},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        process.stdout.close()
        if not line:
            raise BoxError(
                f"the sandbox gateway ended with code {process.wait()} before it was ready"
            )
        report = json.loads(line)
        if "error" in report:
            process.wait()
            raise BoxError(report["error"])
        if report["http"] is not None:
            self.http_url = f"http://{report['http']}"
            self._config = self._config.model_copy(update={"http": report["http"]})
        return process

    def _keep(self) -> None:
        """Start the gateway again whenever it ends unasked."""
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping.wait(LOOK_S):
            code = self._process.poll()
            if code is None:
                continue
            print(
                f"sandbox: the gateway ended with {code}, it is started again",
                file=sys.stderr,
                flush=True,
            )
            with contextlib.suppress(BoxError):
                self._process = self._spawn()
            self._stopping.wait(backoff_s)
            backoff_s = min(LONGEST_BACKOFF_S, backoff_s * 2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _private_dir(runtime_dir: Path | None) -> tuple[Path, bool]:
    """A directory that only this user can enter, and whether it is ours to delete."""
    directory = None if runtime_dir is None else runtime_dir.absolute()
    if directory is None or len(os.fsencode(directory)) > LONGEST_DIR:
        _remove_leftovers()
        directory = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        (directory / OWNER).write_text(owner.label(os.getpid()))
        if len(os.fsencode(directory)) > LONGEST_DIR:
            raise BoxError(
                f"the temporary directory {directory} is too long for a socket; set TMPDIR to a short one"
            )
        return directory, True
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    return directory, False


def _remove_leftovers() -> None:
    """Delete the temporary directories of this user whose owners were killed together with their gateways."""
    for file in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*/{OWNER}"):
        with contextlib.suppress(
            OSError
        ):  # another start may be deleting it, or it is another user's
            if owner.dead(file.read_text()):
                shutil.rmtree(file.parent)
