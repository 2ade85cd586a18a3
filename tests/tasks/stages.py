"""Stage directories and contexts for tests that call a stage's body."""

import io
from pathlib import Path
from typing import Any

from tasks.signals import StopSignals
from tasks.spec import StageSpec
from tasks.stage import Stage, StageContext

CURATE_SETTINGS = {
    "model": {"base": "tiny"},
    "template": {},
    "sandbox": {},
    "prompt_tokens": 256,
    "tool_response_tokens": 48,
}


def curate_spec(seed: int = 0, body: str = "", **curate: Any) -> StageSpec:
    sections = {"curate": curate, **CURATE_SETTINGS}
    return StageSpec(
        stage="curate", body=body, version=1, seed=seed, sections=sections, numeric=sections
    )


def context(runs: Path, spec: StageSpec) -> StageContext:
    return StageContext(Stage.prepare(runs, spec), StopSignals(), io.StringIO())
