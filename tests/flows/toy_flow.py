"""A flow of toy stages on the real `Run`: `python -m tests.flows.toy_flow RUNS_DIR JSON`.

The JSON maps the name of each stage, in order, to its toy settings.
"""

import json
import sys
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.config import load
from flows.run import Run, StageFailed
from tasks.spec import StageSpec
from tests.tasks import toy


def toy_specs(settings: dict[str, dict[str, Any]]) -> dict[str, StageSpec]:
    """A chain: each stage reads all before it."""
    specs: dict[str, StageSpec] = {}
    for name, values in settings.items():
        inputs = {before: spec.fingerprint for before, spec in specs.items()}
        specs[name] = toy.spec(name, inputs=inputs, **values)
    return specs


@flow(name="toy", persist_result=False)
def toy_flow(runs_dir: str, run_name: str, settings: dict[str, dict[str, Any]]) -> State:
    config = load("demo", {"runs_dir": runs_dir})
    specs = toy_specs(settings)
    try:
        with Run(run_name, "demo", config, specs) as run:
            for name in specs:
                run.stage(name)
    except StageFailed as error:
        return Failed(message=str(error))
    return Completed(message="all stages")


if __name__ == "__main__":
    state = toy_flow(str(Path(sys.argv[1])), "toy", json.loads(sys.argv[2]), return_state=True)
    sys.exit(0 if state.is_completed() else 1)
