"""Settings of the sandbox, and `Section`, the base of every floor's settings.

A settings model is strict: an unknown key, a wrong type or a value out of range is an error that names
the key. A field is either *numeric* (it changes what a stage computes, so it is part of the stage's
fingerprint) or *operational* (where and how fast it runs); `numeric()` keeps the first kind.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of all settings: strict and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def operational(default: Any = ..., **kwargs: Any) -> Any:
    """A field that changes no number: changing it makes no finished stage stale."""
    return Field(default, json_schema_extra={"operational": True}, **kwargs)


def numeric(section: Section) -> dict[str, Any]:
    """The fields of `section` (nested ones too) that change numbers, as JSON values."""
    kept: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("operational"):
            continue
        value = getattr(section, name)
        kept[name] = (
            numeric(value) if isinstance(value, Section) else section.model_dump(mode="json")[name]
        )
    return kept


class Limits(Section):
    """What one call may use. CPU and wall clock are separate: a starved program is not a slow one."""

    cpu_s: float = Field(4.0, gt=0, le=600, description="CPU seconds of one call")
    wall_s: float = Field(
        9.0, gt=0, le=1200, description="wall seconds of one call, queue time excluded"
    )
    memory_mb: int = Field(512, ge=32, le=65536, description="address space of one process, MiB")
    tasks: int = Field(32, ge=1, le=4096, description="processes and threads of one call")
    scratch_mb: int = Field(32, ge=1, le=4096, description="writable scratch space, MiB")
    scratch_inodes: int = Field(1024, ge=16, le=1_000_000, description="files in the scratch space")
    output_kib: int = Field(
        64, ge=1, le=8192, description="kept of each output stream, KiB (head and tail)"
    )


Isolation = Literal["docker", "ns-root", "userns", "landlock", "none"]


class SandboxConfig(Section):
    """The code sandbox."""

    limits: Limits = Limits()
    isolation: Literal["auto", "docker", "ns-root", "userns", "landlock"] = operational(
        "auto",
        description="auto = Docker if an engine answers, else the best process isolation, said loudly",
    )
    allow_unsafe: bool = operational(
        False, description="run code unprotected where nothing else works"
    )
    image: str = operational(
        "rstar2-sandbox",
        description="Docker image of the sandbox; without a tag it is built from this checkout's sources",
    )
    slots: int = operational(
        6, ge=1, le=1024, description="calls running at once; the others queue"
    )
    queue: int = operational(
        50_000, ge=1, description="calls waiting at most; beyond it: overloaded"
    )
    start_timeout_s: float = operational(
        60.0, gt=0, description="the sandbox must answer within this time"
    )

    @property
    def slots_of_workers(self) -> list[int]:
        """Slots of each dispatcher."""
        return [self.slots]
