"""The console script `rstar2`: run, plan, eval, serve. Also `python -m flows.cli`.

Imports Prefect only once its server's address is settled, so errors in the settings show at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from flows.config import PipelineConfig, Tree, load, parse_sets, profile_names
from flows.hardware import check
from sandbox.errors import InfrastructureError, UserError


def main() -> None:
    arguments = _parser().parse_args()
    # A shell starts background jobs with SIGINT ignored; it must stop a run there too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(arguments.command(arguments))
    except UserError as error:
        sys.exit(_complain(error, 2))
    except InfrastructureError as error:
        sys.exit(_complain(error, 75))
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)


def run(arguments: argparse.Namespace) -> int:
    """Run the recipe here, without a server."""
    profile, overrides, config = _settings(arguments)
    check(config, profile)

    def flow() -> Any:
        from flows.recipe import Overrides, rstar2

        changes = Overrides.model_validate(overrides)
        return rstar2(profile, arguments.name or profile, changes, return_state=True)

    return _run_flow(config, flow)


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a model on the configured benchmarks."""
    profile, overrides, config = _settings(arguments)

    def flow() -> Any:
        from flows.evaluate import rstar2_eval
        from flows.recipe import Overrides

        changes = Overrides.model_validate(overrides)
        return rstar2_eval(profile, arguments.model or "", changes, return_state=True)

    return _run_flow(config, flow)


def plan(arguments: argparse.Namespace) -> int:
    """Print the resolved configuration and what a run would do, stage by stage."""
    import yaml

    from flows.plan import plan as make_plan
    from tasks.stages import pipeline_specs

    profile, _, config = _settings(arguments)
    print(f"# profile {profile}")
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    for stage in make_plan(config.runs_path, arguments.name or profile, pipeline_specs(config, config.seed)):
        print(f"{stage.stage:<10} {stage.fingerprint}  {stage.action}")
        for key in stage.changed:
            print(f"{'':<10} changed: {key}")
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """Prefect server, MLflow UI and the deployments, until Ctrl-C."""
    from flows.serve import serve as serve_all

    return serve_all(_settings(arguments)[2], arguments.port, arguments.mlflow_port)


def _run_flow(config: PipelineConfig, flow: Callable[[], Any]) -> int:
    from flows.local_server import prefect_server

    os.environ["RSTAR2_CONSOLE"] = "1"
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    with prefect_server(config.runs_path):
        state = flow()
        if state.is_completed():
            if state.name != "Completed":
                print(f"{state.name}: {state.message}")
            return 0
        error = state.result(raise_on_failure=False)
        if isinstance(error, Exception) and type(error).__module__ != "prefect.exceptions":
            raise error  # a bug: with its traceback
        print(f"\n{state.name}: {state.message}", file=sys.stderr)
        return 1


def _settings(arguments: argparse.Namespace) -> tuple[str, Tree, PipelineConfig]:
    overrides = parse_sets(arguments.set)
    config = load(arguments.profile, overrides)
    return arguments.profile or profile_names()[1] or "", overrides, config


def _complain(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rstar2", description="The rStar2-Agent recipe, stage by stage.")
    commands = parser.add_subparsers(required=True)

    def add(name: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=command.__doc__, description=command.__doc__)
        sub.set_defaults(command=command)
        sub.add_argument("--profile", help="a profile of pipeline.yaml; unset = its default_profile")
        sub.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting; repeatable"
        )
        return sub

    for name, command in (("run", run), ("plan", plan)):
        add(name, command).add_argument("--name", help="directory under runs/; unset = the profile's name")
    add("eval", evaluate).add_argument("--model", help="a model directory; unset = the newest exported model")
    serving = add("serve", serve)
    serving.add_argument("--port", type=int, default=4200, help="of the Prefect server")
    serving.add_argument("--mlflow-port", type=int, default=5000, help="of the MLflow UI")
    return parser


if __name__ == "__main__":
    main()
