"""A flow of three toy stages on the real `Run`: `python -m tests.flows.toy_flow RUNS_DIR [JSON settings]`.

`settings` maps a stage (a, b, c) to its toy settings.
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
    a = toy.spec("a", **settings.get("a", {}))
    b = toy.spec("b", inputs={"a": a.fingerprint}, **settings.get("b", {}))
    c = toy.spec("c", inputs={"a": a.fingerprint, "b": b.fingerprint}, **settings.get("c", {}))
    return {"a": a, "b": b, "c": c}


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
    return Completed(message="all three")


if __name__ == "__main__":
    state = toy_flow(str(Path(sys.argv[1])), "toy", json.loads(sys.argv[2]), return_state=True)
    sys.exit(0 if state.is_completed() else 1)
