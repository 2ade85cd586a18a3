"""The flow `rstar2-eval`: a finished model against the configured benchmarks.

The newest exported model by default (deployment rstar2-eval/nightly), or a directory. A model of our own
that was evaluated before with the same settings is not evaluated again: its stage is reused.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from uuid import UUID

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows import live
from flows.config import PipelineConfig, load
from flows.hardware import check
from flows.recipe import DEFAULT_PROFILE, Overrides, Profile
from flows.run import MODEL_STAGES, Run, StageFailed
from sandbox.errors import UserError
from tasks.spec import StageSpec
from tasks.stage import Stage
from tasks.stages import STAGES, make_spec


@flow(name="rstar2-eval", persist_result=False)
def rstar2_eval(
    profile: Profile = DEFAULT_PROFILE,
    model: str = "",
    overrides: Overrides = Overrides(),  # type: ignore[valid-type]
) -> State:
    """Evaluate a model.

    Args:
        profile: a profile of pipeline.yaml
        model: a model directory; empty = the newest model that a run has exported
        overrides: only what this run changes of the profile
    """
    try:
        config = load(profile, overrides.tree())  # type: ignore[attr-defined]
        check(config, profile)
        if not live.hold(config.runs_path, UUID(flow_run.id)):
            return Failed(message="another process runs this flow run")
        specs = given(config, Path(model)) if model else newest(config)
        if specs is None:
            return Completed(name="Nothing to evaluate", message=f"no exported model in {config.runs_path}")
        with Run("eval", profile, config, specs) as run:
            for name in specs:
                run.stage(name)
        return Completed(message=f"see {run.dir}")
    except UserError as error:
        return Failed(name="Refused", message=str(error))
    except StageFailed as error:
        return Failed(message=str(error))


def newest(config: PipelineConfig) -> dict[str, StageSpec] | None:
    """The evaluation of the newest exported model, None without one."""
    found = [
        path
        for name in MODEL_STAGES
        for path in (config.runs_path / "stages").glob(f"{name}-*/manifest.json")
        if (path.parent / "outputs/model").is_dir() and Stage.open(path.parent).manifest() is not None
    ]
    if not found:
        return None
    source = Stage.open(max(found, key=lambda path: path.stat().st_mtime_ns).parent).spec
    inputs = {"curate": source.inputs["curate"], source.stage: source.fingerprint}
    kind = STAGES["evaluate"]
    spec = make_spec(kind, config, config.seed, dict.fromkeys(kind.upstream, ""))
    return {"evaluate": spec.model_copy(update={"inputs": inputs})}


def given(config: PipelineConfig, model: Path) -> dict[str, StageSpec]:
    """The evaluation of a model directory, on the data that this configuration curates."""
    if not (model / "config.json").is_file():
        raise UserError(f"model {model}: expected a directory with config.json and weights (save_pretrained)")
    curate = make_spec(STAGES["curate"], config, config.seed, {})
    kind = STAGES["evaluate"]
    spec = make_spec(kind, config, config.seed, dict.fromkeys(kind.upstream, ""))
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in model.iterdir())
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    update = {
        "inputs": {"curate": curate.fingerprint},
        "model": str(model.resolve()),
        "numeric": spec.numeric | {"model_files": digest},
    }
    return {"curate": curate, "evaluate": spec.model_copy(update=update)}
