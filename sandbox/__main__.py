"""`python -m sandbox`: serve (own a sandbox in the foreground), run FILE, image, health."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from sandbox import build
from sandbox.box import Box, BoxError, Place
from sandbox.client import SandboxClient
from sandbox.config import SandboxConfig
from sandbox.container import DockerBox, connect
from sandbox.errors import InfrastructureError, UserError
from sandbox.gateway import Gateway
from sandbox.namespace import BareBox, NamespaceBox
from sandbox.service import SOCKET, Sandbox


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="own a sandbox until Ctrl-C; prints its endpoint")
    run = commands.add_parser("run", help="run one Python file in a sandbox")
    run.add_argument("file", type=Path)
    run.add_argument(
        "--endpoint", help="of a running sandbox; otherwise one is started for this run"
    )
    image = commands.add_parser(
        "image", help="build the Docker image if it is missing or out of date"
    )
    health = commands.add_parser("health", help="ask a running sandbox how it is")
    health.add_argument("endpoint")
    for command in (serve, run, image):
        command.add_argument(
            "--config", default="{}", help="SandboxConfig as JSON, default %(default)s"
        )
    serve.add_argument("--dir", type=Path, help="runtime directory; a temporary one by default")
    gateway = commands.add_parser("gateway", help="internal: the process that Sandbox.start runs")
    for name in ("isolation", "dir", "owner", "config"):
        gateway.add_argument(name)
    arguments = parser.parse_args()
    if arguments.command == "health":
        print(json.dumps(asyncio.run(_health(arguments.endpoint)), indent=2))
        return 0
    config = SandboxConfig.model_validate_json(arguments.config)
    try:
        if arguments.command == "serve":
            return _serve(config, arguments.dir)
        if arguments.command == "run":
            return _run(config, arguments.file, arguments.endpoint)
        if arguments.command == "image":
            build.ensure_image(connect(), config.image)
            return 0
    except (UserError, InfrastructureError) as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 1
    return _gateway(config, arguments.isolation, Path(arguments.dir), int(arguments.owner))


async def _health(endpoint: str) -> dict[str, object]:
    client = SandboxClient(endpoint)
    try:
        return await client.health()
    finally:
        await client.close()


def _serve(config: SandboxConfig, directory: Path | None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt), Sandbox.start(config, directory) as sandbox:
        print(
            json.dumps({"endpoint": sandbox.endpoint, "isolation": sandbox.isolation}), flush=True
        )
        while True:
            signal.pause()
    return 0


def _run(config: SandboxConfig, file: Path, endpoint: str | None) -> int:
    async def call(at: str) -> int:
        client = SandboxClient(at)
        outcome = await client.run(file.read_text(), "" if sys.stdin.isatty() else sys.stdin.read())
        await client.close()
        sys.stdout.write(outcome.stdout)
        sys.stderr.write(outcome.stderr)
        print(
            f"[{outcome.status}, exit {outcome.exit_code}, wall {outcome.wall_s:.3f} s, cpu {outcome.cpu_s:.3f} s, "
            f"isolation {outcome.isolation}]",
            file=sys.stderr,
        )
        return 0 if outcome.status.value == "ok" else 1

    if endpoint is not None:
        return asyncio.run(call(endpoint))
    with Sandbox.start(config) as sandbox:
        return asyncio.run(call(sandbox.endpoint))


def _gateway(config: SandboxConfig, isolation: str, directory: Path, owner: int) -> int:
    """Says one line of JSON on stdout: what it serves, or why it cannot."""
    place = Place(directory / "box")
    try:
        gateway = Gateway(config, _box(config, isolation, place), place, directory / SOCKET, owner)
        asyncio.run(
            gateway.serve(
                lambda: print(json.dumps({"endpoint": str(directory / SOCKET)}), flush=True)
            )
        )
    except BoxError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return 0


def _box(config: SandboxConfig, isolation: str, place: Place) -> Box:
    if isolation == "docker":
        return DockerBox(config, place)
    if isolation == "none":
        return BareBox(config, place)
    return NamespaceBox(config, place, isolation)


if __name__ == "__main__":
    sys.exit(main())
