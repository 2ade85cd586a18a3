"""The floors hold: imports go down, and heavy libraries stay behind the modules that need them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_import_contracts() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "module", ["flows.config", "flows.overrides", "flows.cli", "tasks.stage", "rl.roc"]
)
def test_starts_at_once(module: str) -> None:
    heavy = "torch,vllm,ray,transformers,trl,datasets,mlflow,prefect"
    code = f"import sys, {module}; print([m for m in '{heavy}'.split(',') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
