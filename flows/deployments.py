"""The deployments rstar2/full-recipe and rstar2-eval/nightly, served: `python -m flows.deployments RUNS_DIR`.

Begins with `live.reconcile`: what a dead machine left "Running" is scheduled again and goes on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prefect import serve
from prefect.client.orchestration import get_client
from prefect.schedules import Cron
from prefect.types.entrypoint import EntrypointType

from flows import live
from flows.evaluate import rstar2_eval
from flows.recipe import rstar2


def main(runs_dir: Path) -> None:
    with get_client(sync_client=True) as client:
        for name in live.reconcile(client, runs_dir, [rstar2.name, rstar2_eval.name]):
            print(f"the process of flow run {name} is gone; settled", flush=True)
    # By module path: Prefect would load a file path as a top-level module, outside its package.
    recipe = rstar2.to_deployment(
        "full-recipe",
        description="The whole recipe; the default profile unless told otherwise.",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    nightly = rstar2_eval.to_deployment(
        "nightly",
        description="The newest exported model against the benchmarks.",
        schedules=[Cron(os.environ["RSTAR2_CRON"], slug="nightly")],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    serve(recipe, nightly, pause_on_shutdown=False)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
