"""The flow `rstar2`: the recipe of the report, stage by stage, each resumable.

Run it by `rstar2 run` without any server, or as the deployment rstar2/full-recipe (`make serve`).
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import WithJsonSchema

from flows import live, plan, quiet
from flows.config import Tree, load, profile_names
from flows.hardware import check
from flows.overrides import overrides_model
from flows.run import Run, StageFailed
from sandbox.errors import UserError
from tasks.launch import say
from tasks.stages import pipeline_specs

PROFILES, _default = profile_names()
DEFAULT_PROFILE = _default or PROFILES[0]
Profile = Annotated[str, WithJsonSchema({"type": "string", "enum": PROFILES})]
Overrides = overrides_model()

quiet.hide_expected_failures()


@flow(name="rstar2", persist_result=False)
def rstar2(
    profile: Profile = DEFAULT_PROFILE,
    run_name: str = "",
    overrides: Overrides = Overrides(),  # type: ignore[valid-type]
) -> State:
    """The whole recipe: curate, sft, three RL stages, evaluation, report.

    Args:
        profile: a profile of pipeline.yaml
        run_name: the directory under runs/; empty = the profile's name. The same name goes on where it was
        overrides: only what this run changes of the profile
    """
    try:
        return _recipe(profile, run_name or profile, overrides.tree())  # type: ignore[attr-defined]
    except UserError as error:
        return Failed(name="Refused", message=str(error))
    except StageFailed as error:
        return Failed(message=str(error))


def _recipe(profile: str, run_name: str, overrides: Tree) -> State:
    config = load(profile, overrides)
    check(config, profile)
    if not live.hold(config.runs_path, UUID(flow_run.id)):
        return Failed(message="another process runs this flow run")
    specs = pipeline_specs(config, config.seed)
    for stage in plan.plan(config.runs_path, run_name, specs):
        say(f"{stage.stage}: {stage.action}" + "".join(f"; {key}" for key in stage.changed))

    with Run(run_name, profile, config, specs) as run:
        run.stage("curate")
        run.stage("sft")
        run.stage("rl1")
        run.stage("rl2")
        run.stage("hard_pool")
        run.stage("rl3")
        run.stage("evaluate")
        run.stage("report")

    return Completed(message=f"see {run.dir}")
