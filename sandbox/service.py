"""The owner of a sandbox: starts the gateway process and everything under it, and stops it all again.

    with Sandbox.start(SandboxConfig(), runtime_dir) as sandbox:
        client = SandboxClient(sandbox.endpoint)

The gateway is a process of its own, so several client processes share one sandbox through its socket. It
lives no longer than its owner: it watches its parent, and the container behind it holds a lease that only
a living gateway renews, so that `kill -9` of either leaves nothing running.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from sandbox.config import SandboxConfig


class Sandbox:
    """A running sandbox; a context manager, or `start()` and `stop()`."""

    endpoint: str
    """Where SandboxClient connects: the path of a unix socket."""
    isolation: str
    """The level that calls really run at (docker, ns-root, userns, none)."""

    @classmethod
    def start(cls, config: SandboxConfig, runtime_dir: Path | None = None) -> Sandbox:
        """Start a sandbox; returns once it has answered. Sockets and logs go to `runtime_dir`."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the gateway and the container, and wait until both are gone. May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
