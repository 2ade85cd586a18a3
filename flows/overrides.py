"""`Overrides`: what one run changes of its profile, as a form for people and a schema for the server.

Generated from `PipelineConfig`, so it can't fall behind it. Everything may stay unset, which means "as in
the profile": a posted form carries only differences. `rl.all` goes to every RL stage. Values are checked
against the same types and ranges; what only shows when layers are combined is checked by `flows.config.load`.
"""

from __future__ import annotations

import types
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from flows.config import PipelineConfig, RLStages, Tree, load, profile_names
from sandbox.config import Section

UNCHANGED = "as in the profile"


class OverridesBase(BaseModel):
    """Base of the generated models."""

    model_config = ConfigDict(extra="forbid")

    def tree(self) -> Tree:
        """Only what was set."""
        tree: Tree = {}
        for name in self.model_fields_set:
            value = getattr(self, name)
            if isinstance(value, OverridesBase):
                value = value.tree() or None
            if value is not None and value != UNCHANGED:
                tree[name] = value
        return tree


@lru_cache
def overrides_model() -> type[OverridesBase]:
    """The model of `overrides`, with each profile's value in the descriptions."""
    profiles = {name: load(name) for name in profile_names()[0]}
    return _model(PipelineConfig, "Overrides", (), profiles)


def _model(
    section: type[Section], title: str, path: tuple[str, ...], profiles: dict[str, PipelineConfig]
) -> type[OverridesBase]:
    if section is RLStages:
        fields = {name: _nested(field, (*path, name), profiles) for name, field in RLStages.model_fields.items()}
        fields = {"all": _nested(RLStages.model_fields["rl1"], (*path, "all"), profiles)} | fields
    else:
        fields = {
            name: _field(field, (*path, name), profiles) for name, field in section.model_fields.items()
        }
    doc = (section.__doc__ or "").strip()
    return create_model(title, __base__=OverridesBase, __doc__=doc, **fields)


def _field(field: FieldInfo, path: tuple[str, ...], profiles: dict[str, PipelineConfig]) -> Any:
    kind: Any = _without_none(field.annotation)
    if isinstance(kind, type) and issubclass(kind, Section):
        return _nested(field, path, profiles)
    description = f"{field.description or path[-1].replace('_', ' ')} [{_values(path, profiles)}]"
    if kind is bool:
        kind = Literal[True, False]
    if get_origin(kind) is Literal:
        kind = Literal[(UNCHANGED, *get_args(kind))]
        return (kind, Field(UNCHANGED, description=description))
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    unset = Field(None, description=description, json_schema_extra=_drop_default)
    return (kind | SkipJsonSchema[None], unset)  # type: ignore[misc]


def _nested(field: FieldInfo, path: tuple[str, ...], profiles: dict[str, PipelineConfig]) -> Any:
    section = field.annotation
    assert isinstance(section, type)
    assert issubclass(section, Section)
    model = _model(section, "_".join(path), path, profiles)
    return (model, Field(default_factory=model, json_schema_extra=_empty_default))


def _drop_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _empty_default(schema: dict[str, Any]) -> None:
    schema["default"] = {}


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    rest = [item for item in get_args(annotation) if item is not type(None)]
    return rest[0] if len(rest) == 1 else annotation


def _values(path: tuple[str, ...], profiles: dict[str, PipelineConfig]) -> str:
    stages = ("rl1", "rl2", "rl3") if path[:2] == ("rl", "all") else path[1:2]
    shown = []
    for name, config in profiles.items():
        places = [("rl", stage, *path[2:]) for stage in stages] if path[0] == "rl" else [path]
        values = list(dict.fromkeys(str(_get(config, place)) for place in places))
        shown.append(f"{name}: {', '.join(values)}")
    return " | ".join(shown)


def _get(config: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        config = getattr(config, part)
    return config
