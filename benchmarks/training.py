"""One training run of the demo for benchmarks: stage rl1 under a seed of its own, on shared curate and sft."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flows.config import PipelineConfig
from tasks.spec import Manifest
from tasks.stage import Stage, read_metrics
from tasks.stages import STAGES, make_spec

RUNS = Path("runs")


def train_rl1(config: PipelineConfig, seed: int) -> tuple[Manifest, list[dict[str, float]]]:
    """The stage's manifest and its metrics, a row a step. Stages that are finished are reused."""
    inputs: dict[str, str] = {}
    for name, stage_seed in (("curate", 0), ("sft", 0), ("rl1", seed)):
        spec = make_spec(STAGES[name], config, stage_seed, inputs)
        inputs[name] = spec.fingerprint
        stage = Stage.prepare(RUNS, spec)
        subprocess.run([sys.executable, "-m", "tasks", str(stage.dir)], check=True, stdout=subprocess.DEVNULL)
    manifest = stage.manifest()
    if manifest is None:
        raise RuntimeError(f"{stage.dir} ended without a manifest")
    rows = [row["values"] for row in read_metrics(stage.dir / "metrics.jsonl")]
    return manifest, [row for row in rows if "reward" in row]
