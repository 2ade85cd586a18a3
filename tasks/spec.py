"""What a stage is asked to compute (`StageSpec`) and what it came to (`Manifest`), as data.

Invariants: the fingerprint is a hash of everything that changes numbers and of nothing else, so two specs
with the same fingerprint may share a directory; it is made of canonical JSON, so it is the same in every
process; a manifest exists only for a finished stage.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FINGERPRINT_CHARS = 12


class StageSpec(BaseModel):
    """All that a stage child needs to know. `sections` are resolved settings, operational ones included;
    `numeric` is their part that changes numbers."""

    model_config = ConfigDict(extra="forbid")

    stage: str
    body: str = Field(description="module:function of the stage's body")
    version: int
    seed: int
    sections: dict[str, Any]
    numeric: dict[str, Any]
    inputs: dict[str, str] = Field(default_factory=dict, description="upstream stage -> its fingerprint")
    model: str | None = Field(None, description="a model directory given from outside, instead of an upstream's")
    mlflow_run_id: str | None = Field(None, description="where the launcher copies this stage's metrics to")

    @property
    def identity(self) -> dict[str, Any]:
        """What the fingerprint is made of."""
        return {
            "stage": self.stage,
            "version": self.version,
            "seed": self.seed,
            "settings": self.numeric,
            "inputs": self.inputs,
        }

    @property
    def fingerprint(self) -> str:
        text = json.dumps(self.identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_CHARS]


class StageStatus(BaseModel):
    """How far a stage is; rewritten while it runs, so that an unfinished stage can be told about too."""

    model_config = ConfigDict(extra="forbid")

    status: str = "running"  # running | stopped | failed | completed
    seconds: float = Field(0.0, description="of work, summed over resumes")
    step: int = 0
    total: int | None = None
    error: str = ""
    results: dict[str, Any] = Field(default_factory=dict)
    ran_on: dict[str, Any] = Field(default_factory=dict)
    mlflow_run_id: str | None = None


class Manifest(BaseModel):
    """The record of a finished stage; `outputs` maps each file under outputs/ to its size in bytes."""

    model_config = ConfigDict(extra="forbid")

    stage: str
    fingerprint: str
    status: str = "completed"
    seconds: float
    steps: int
    results: dict[str, Any]
    ran_on: dict[str, Any]
    outputs: dict[str, int]
    mlflow_run_id: str | None = None


def changed_keys(old: StageSpec, new: StageSpec) -> list[str]:
    """Dotted names of what differs between the identities of two specs: `settings.rl.steps: 40 -> 45`."""
    before, after = flatten(old.identity), flatten(new.identity)
    return [
        f"{key}: {_show(before, key)} -> {_show(after, key)}"
        for key in sorted(before.keys() | after.keys())
        if _show(before, key) != _show(after, key)
    ]


def _show(flat: dict[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "absent"


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= flatten(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = item
    return flat
