"""`python -m sandbox`: serve (own a sandbox in the foreground), run FILE, image, health, selfcheck, probe."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

from pydantic import ValidationError

from sandbox import build, probe
from sandbox.bare import BareBox
from sandbox.box import Box, BoxError, Place
from sandbox.client import SandboxClient
from sandbox.config import SandboxConfig
from sandbox.container import DockerBox, connect
from sandbox.errors import InfrastructureError, UserError
from sandbox.gateway import Gateway
from sandbox.http import read_token
from sandbox.links import Endpoint
from sandbox.namespace import NamespaceBox
from sandbox.request import complaint
from sandbox.selfcheck.command import add_arguments
from sandbox.selfcheck.command import run as run_selfcheck
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
    health.add_argument("endpoint", help="path of its socket, or its http:// address")
    for command in (serve, run, health):
        command.add_argument(
            "--token-file", type=Path, help="holds the token that HTTP clients must send"
        )
    selfcheck = commands.add_parser(
        "selfcheck", help="try to break a sandbox, and print which promises it holds"
    )
    add_arguments(selfcheck)
    for command in (serve, run, image, selfcheck):
        command.add_argument(
            "--config", default="{}", help="SandboxConfig as JSON, default %(default)s"
        )
    serve.add_argument(
        "--http", metavar="HOST:PORT", help="serve HTTP there as well; port 0 is any free one"
    )
    serve.add_argument("--dir", type=Path, help="runtime directory; a temporary one by default")
    commands.add_parser("probe", help="which isolation levels this machine has, and why not others")
    gateway = commands.add_parser("gateway", help="internal: the process that Sandbox.start runs")
    for name in ("isolation", "dir", "owner", "config"):
        gateway.add_argument(name)
    gateway.add_argument(
        "--temporary", action="store_true", help="remove DIR if the owner is gone in the end"
    )
    arguments = parser.parse_args()
    if arguments.command == "probe":
        print(probe.table(probe.survey()))
        return 0
    try:
        if arguments.command == "health":
            return _health_of(_endpoint(arguments))
        config = _config(arguments)
        if arguments.command == "serve":
            return _serve(config, arguments.dir)
        if arguments.command == "run":
            endpoint = None if arguments.endpoint is None else _endpoint(arguments)
            return _run(config, arguments.file, endpoint)
        if arguments.command == "selfcheck":
            return run_selfcheck(config, arguments)
        if arguments.command == "image":
            build.ensure_image(connect(), config.image)
            return 0
    except ValidationError as error:
        print(f"sandbox: {complaint(error)}", file=sys.stderr)
        return 2
    except (UserError, InfrastructureError) as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 1
    directory, owner = Path(arguments.dir), int(arguments.owner)
    code = _gateway(config, arguments.isolation, directory, owner)
    if arguments.temporary and os.getppid() != owner:  # else the owner does it
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _config(arguments: argparse.Namespace) -> SandboxConfig:
    try:
        fields = json.loads(arguments.config)
    except ValueError as error:
        raise UserError(f"--config: expected SandboxConfig as JSON, {error}") from None
    if not isinstance(fields, dict):
        raise UserError(f"--config: expected a JSON object, got {fields!r}")
    if arguments.command == "serve":
        given = {"http": arguments.http, "http_token_file": arguments.token_file}
        fields |= {name: value for name, value in given.items() if value is not None}
    return SandboxConfig.model_validate(fields)


def _endpoint(arguments: argparse.Namespace) -> Endpoint:
    """Of the running sandbox that is meant."""
    token_file = arguments.token_file
    return Endpoint(arguments.endpoint, None if token_file is None else read_token(token_file))


async def _health(endpoint: Endpoint) -> dict[str, object]:
    client = SandboxClient(endpoint)
    try:
        return await client.health()
    finally:
        await client.close()


def _health_of(endpoint: Endpoint) -> int:
    try:
        health = asyncio.run(_health(endpoint))
    except OSError as error:
        print(f"sandbox: nobody answers at {endpoint.address}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(health, indent=2))
    return 0 if health["ready"] else 1


def _serve(config: SandboxConfig, directory: Path | None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt), Sandbox.start(config, directory) as sandbox:
        _report(
            endpoint=sandbox.endpoint,
            http=sandbox.http_url,
            isolation=sandbox.isolation,
            workers=len(config.slots_of_workers),
            slots=config.all_slots,
        )
        while True:
            signal.pause()
    return 0


def _run(config: SandboxConfig, file: Path, endpoint: Endpoint | None) -> int:
    async def call(at: Endpoint) -> int:
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
        return asyncio.run(call(Endpoint(sandbox.endpoint)))


def _gateway(config: SandboxConfig, isolation: str, directory: Path, owner: int) -> int:
    """Says one line of JSON on stdout: what it serves, or why it cannot."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each HTTP call is a connection
    place = Place(directory / "box")
    try:
        gateway = Gateway(config, _box(config, isolation, place), place, directory / SOCKET, owner)
        asyncio.run(
            gateway.serve(lambda http: _report(endpoint=str(directory / SOCKET), http=http))
        )
    except BoxError as error:
        _report(error=str(error))
        return 1
    return 0


def _report(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def _box(config: SandboxConfig, isolation: str, place: Place) -> Box:
    if isolation == "docker":
        return DockerBox(config, place)
    if isolation in ("landlock", "none"):
        return BareBox(config, place, isolation)
    return NamespaceBox(config, place, isolation)


if __name__ == "__main__":
    sys.exit(main())
