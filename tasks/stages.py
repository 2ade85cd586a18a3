"""The table of stages: which body, which settings, which upstream stages. Imports no body.

`version` is raised by hand when a body computes other numbers from the same settings: it makes finished
stages of that kind stale. `sections` maps the name under which the body asks for settings
(`ctx.section(RLConfig, "rl")`) to their place in the pipeline's configuration (`rl.rl2`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sandbox.config import Section, numeric
from tasks.spec import StageSpec


@dataclass(frozen=True)
class StageKind:
    """One stage of the recipe."""

    name: str
    body: str  # module:function
    version: int
    upstream: tuple[str, ...]
    sections: dict[str, str]


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_ENGINES = _same("template", "engine", "sandbox", "cluster")


def _rl(name: str, upstream: tuple[str, ...]) -> StageKind:
    sections = {"rl": f"rl.{name}"} | _ENGINES | _same("held_out", "learner")
    return StageKind(name, "tasks.reinforce:run", 1, upstream, sections)


STAGES: dict[str, StageKind] = {
    kind.name: kind
    for kind in (
        StageKind(
            "curate",
            "tasks.curation.stage:run",
            1,
            (),
            # Scalars, read by ctx.setting: what the first RL stage allows a prompt and a tool response.
            _same("curate", "model", "template", "sandbox")
            | {
                "prompt_tokens": "rl.rl1.rollout.prompt_tokens",
                "tool_response_tokens": "rl.rl1.rollout.tool_response_tokens",
            },
        ),
        StageKind(
            "sft",
            "tasks.sft:run",
            1,
            ("curate",),
            _same("model", "sft", "held_out") | _ENGINES,
        ),
        _rl("rl1", ("curate", "sft")),
        _rl("rl2", ("curate", "rl1")),
        StageKind(
            "hard_pool",
            "tasks.hard_pool:run",
            1,
            ("curate", "rl2"),
            _same("hard_pool") | _ENGINES | {"rollout": "rl.rl2.rollout"},
        ),
        _rl("rl3", ("curate", "rl2", "hard_pool")),
        StageKind(
            "evaluate", "tasks.evaluate:run", 1, ("curate", "rl3"), _same("evaluate", "held_out") | _ENGINES
        ),
        StageKind(
            "report",
            "tasks.report.stage:run",
            1,
            ("curate", "sft", "rl1", "rl2", "hard_pool", "rl3", "evaluate"),
            {},
        ),
    )
}


def make_spec(kind: StageKind, config: BaseModel, seed: int, inputs: dict[str, str]) -> StageSpec:
    """The spec of one stage under `config`, given the fingerprints of all stages before it."""
    missing = [name for name in kind.upstream if name not in inputs]
    if missing:
        raise KeyError(f"stage {kind.name} needs the fingerprints of {missing}")
    sections: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for name, place in kind.sections.items():
        value = _resolve(config, place)
        if isinstance(value, Section):
            sections[name], numbers[name] = value.model_dump(mode="json"), numeric(value)
        else:
            sections[name] = numbers[name] = value
    return StageSpec(
        stage=kind.name,
        body=kind.body,
        version=kind.version,
        seed=seed,
        sections=sections,
        numeric=numbers,
        inputs={name: inputs[name] for name in kind.upstream},
    )


def pipeline_specs(config: BaseModel, seed: int) -> dict[str, StageSpec]:
    """The specs of all stages in order: every fingerprint is known before anything runs."""
    specs: dict[str, StageSpec] = {}
    for kind in STAGES.values():
        inputs = {name: specs[name].fingerprint for name in kind.upstream}
        specs[kind.name] = make_spec(kind, config, seed, inputs)
    return specs


def _resolve(config: Any, place: str) -> Any:
    for part in place.split("."):
        config = getattr(config, part)
    return config
