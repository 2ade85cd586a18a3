"""The pipeline's configuration: each floor's settings composed, and how `pipeline.yaml` becomes one.

Layers, the later wins: the body of the file, the profile, the overrides of this run. In each layer
`rl.all` is laid over every RL stage before that stage's own settings. Nothing is filled in silently and
nothing unknown is ignored: a wrong key, type or range is a `UserError` that names the key, what was given
and what is valid, before anything starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError, model_validator

from rl.config import ClusterConfig, EngineConfig, LearnerConfig, RLConfig, TemplateConfig
from sandbox.config import SandboxConfig, Section, operational
from sandbox.errors import UserError
from tasks.config import (
    CurateConfig,
    EvaluateConfig,
    HardPoolConfig,
    HeldOutConfig,
    ModelConfig,
    SftConfig,
    TrackConfig,
)

Tree = dict[str, Any]
RL_STAGES = ("rl1", "rl2", "rl3")


class RLStages(Section):
    """The three RL stages; `rl.all` in the file and in overrides goes to each of them."""

    rl1: RLConfig = RLConfig()
    rl2: RLConfig = RLConfig()
    rl3: RLConfig = RLConfig()


class PipelineConfig(Section):
    """Everything that a run of the recipe depends on."""

    seed: int = 0
    runs_dir: str = operational("runs", description="where stages, runs and the databases live")
    model: ModelConfig = ModelConfig()
    curate: CurateConfig = CurateConfig()
    template: TemplateConfig = TemplateConfig()
    sft: SftConfig = SftConfig()
    rl: RLStages = RLStages()
    hard_pool: HardPoolConfig = HardPoolConfig()
    held_out: HeldOutConfig = HeldOutConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    sandbox: SandboxConfig = SandboxConfig()
    engine: EngineConfig = EngineConfig()
    learner: LearnerConfig = LearnerConfig()
    cluster: ClusterConfig = ClusterConfig()
    track: TrackConfig = TrackConfig()

    @model_validator(mode="after")
    def _nothing_to_carry(self) -> PipelineConfig:
        if self.rl.rl1.optimizer.state == "carry":
            raise ValueError(
                "rl.rl1.optimizer.state is 'carry', but rl1 follows sft, which leaves no RL optimizer; "
                "valid: 'fresh' or 'reset'"
            )
        return self

    @model_validator(mode="after")
    def _demo_writes_scripts(self) -> PipelineConfig:
        if self.curate.source == "demo" and self.template.tool_mode != "script":
            raise ValueError(
                "template.tool_mode is 'cell', but curate.source is 'demo', whose conversations call scripts; "
                "valid: tool_mode 'script', or curate.source 'files' with conversations that call cells"
            )
        return self

    @property
    def runs_path(self) -> Path:
        return Path(self.runs_dir).resolve()

    @property
    def tracking_uri(self) -> str:
        return self.track.uri or f"sqlite:///{self.runs_path / 'mlflow.db'}"


def load(
    profile: str | None = None, overrides: Tree | None = None, file: str | Path = "pipeline.yaml"
) -> PipelineConfig:
    """The configuration of `profile` (None = the file's `default_profile`) with `overrides`."""
    body = read_file(file)
    profiles = body.pop("profiles", {})
    default = body.pop("default_profile", None)
    name = profile or default
    if name is not None and name not in profiles:
        raise UserError(f"profile '{name}' is not in {file}; valid: {', '.join(profiles) or 'none'}")
    layers = [
        (str(file), body),
        (f"{file}, profile {name}", profiles.get(name) or {}),
        ("the overrides", overrides or {}),
    ]
    try:
        return PipelineConfig.model_validate(_merged(layers))
    except ValidationError as error:
        raise UserError(_explain(error, layers)) from None


def profile_names(file: str | Path = "pipeline.yaml") -> tuple[list[str], str | None]:
    """Names of the profiles in the file, and the default one."""
    body = read_file(file)
    return list(body.get("profiles", {})), body.get("default_profile")


def parse_sets(pairs: list[str]) -> Tree:
    """`["rl.rl1.steps=5", …]` as a tree; values are YAML scalars, lists or maps."""
    tree: Tree = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise UserError(f"--set {pair}: expected KEY=VALUE with a dotted key, such as rl.rl1.steps=5")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"--set {pair}: the value is no YAML: {error}") from None
        for part in reversed(key.split(".")):
            value = {part: value}
        tree = merge(tree, value)
    return tree


def merge(below: Tree, above: Tree) -> Tree:
    """`above` laid over `below`; maps are merged, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def read_file(file: str | Path) -> Tree:
    path = Path(file)
    if not path.is_file():
        raise UserError(f"{path} is not there: run this in a checkout of the project, or pass --file")
    try:
        tree = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a map of settings, got {type(tree).__name__}")
    return tree


def _merged(layers: list[tuple[str, Tree]]) -> Tree:
    tree: Tree = {}
    for where, layer in layers:
        tree = merge(tree, _spread_all(where, layer))
    return tree


def _spread_all(where: str, layer: Tree) -> Tree:
    """The layer with `rl.all` laid under each of its RL stages."""
    rl = layer.get("rl")
    if not isinstance(rl, dict) or "all" not in rl:
        return layer
    if not isinstance(rl["all"], dict):
        raise UserError(f"rl.all ({where}): expected a map of settings, got {rl['all']!r}")
    spread = {key: value for key, value in rl.items() if key != "all"}
    for name in RL_STAGES:
        own = rl.get(name) or {}
        spread[name] = merge(rl["all"], own) if isinstance(own, dict) else own
    return layer | {"rl": spread}


def _explain(error: ValidationError, layers: list[tuple[str, Tree]]) -> str:
    lines: list[str] = []
    for item in error.errors():
        path = tuple(str(part) for part in item["loc"])
        key, where = _origin(path, layers)
        if item["type"] == "extra_forbidden":
            line = f"{key} ({where}): there is no such setting; valid here: {', '.join(_valid(path[:-1]))}"
        elif item["type"] == "value_error":
            line = f"{key + ' ' if key else ''}({where}): {item['msg'].removeprefix('Value error, ')}"
        else:
            line = f"{key} ({where}): {item['msg']}, got {item['input']!r}"
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)


def _origin(path: tuple[str, ...], layers: list[tuple[str, Tree]]) -> tuple[str, str]:
    """The key as the user wrote it (`rl.all.…` where it stands there) and the layer that has it."""
    everywhere = ("rl", "all", *path[2:]) if path[:1] == ("rl",) and len(path) > 2 else path
    for where, layer in reversed(layers):
        for candidate in (path, everywhere):
            if _has(layer, candidate):
                return ".".join(candidate), where
    return ".".join(path), layers[0][0]


def _has(tree: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def _valid(path: tuple[str, ...]) -> list[str]:
    model: Any = PipelineConfig
    for part in path:
        model = model.model_fields[part].annotation
    names = list(model.model_fields) if issubclass(model, BaseModel) else []
    return ["all", *names] if model is RLStages else names
