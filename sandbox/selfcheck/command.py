"""`python -m sandbox selfcheck`: run the suite against one level, or a running sandbox, and say what held."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import sys

from sandbox.config import Limits, SandboxConfig
from sandbox.errors import UserError
from sandbox.selfcheck.model import Program
from sandbox.selfcheck.programs import PROGRAMS
from sandbox.selfcheck.runner import State, run_suite
from sandbox.selfcheck.table import as_json, table
from sandbox.service import Sandbox

LEVELS = ("docker", "ns-root", "userns", "landlock")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation", choices=("auto", *LEVELS), help="level to start; default: the config's"
    )
    parser.add_argument("--endpoint", help="of a running sandbox; otherwise one is started")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="programs to run; * matches any text"
    )
    parser.add_argument("--json", action="store_true", help="verdicts as JSON instead of a table")


def run(config: SandboxConfig, arguments: argparse.Namespace) -> int:
    """Exit code 1 if a promise is broken."""
    programs = chosen(arguments.only)
    if arguments.endpoint is not None:
        return _report(arguments.endpoint, None, programs, arguments.json)
    update: dict[str, object] = {"limits": Limits(), "http": config.http or "127.0.0.1:0"}
    if arguments.isolation is not None:
        update["isolation"] = arguments.isolation
    config = config.model_copy(update=update)
    print("sandbox selfcheck: starting a sandbox", file=sys.stderr, flush=True)
    with Sandbox.start(config) as sandbox:
        return _report(sandbox.endpoint, sandbox.http_url, programs, arguments.json)


def chosen(patterns: list[str] | None) -> list[Program]:
    """The programs that `patterns` name; all without any."""
    if patterns is None:
        return list(PROGRAMS)
    for pattern in patterns:
        if not fnmatch.filter([program.name for program in PROGRAMS], pattern):
            raise UserError(
                f"--only {pattern}: no program of that name; there are "
                + ", ".join(program.name for program in PROGRAMS)
            )
    return [p for p in PROGRAMS if any(fnmatch.fnmatch(p.name, pattern) for pattern in patterns)]


def _report(endpoint: str, http_url: str | None, programs: list[Program], as_data: bool) -> int:
    print(
        f"sandbox selfcheck: running {len(programs)} programs (half a minute for all)",
        file=sys.stderr,
        flush=True,
    )
    isolation, verdicts = asyncio.run(run_suite(endpoint, programs, http_url))
    if as_data:
        print(json.dumps(as_json(isolation, verdicts), indent=1))
    else:
        print(table(isolation, verdicts))
    return 1 if any(verdict.state is State.BROKEN for verdict in verdicts) else 0
