"""Settings of the sandbox, and `Section`, the base of every floor's settings.

A settings model is strict: an unknown key, a wrong type or a value out of range is an error that names
the key. A field is either *numeric* (it changes what a stage computes, so it is part of the stage's
fingerprint) or *operational* (where and how fast it runs); `numeric()` keeps the first kind.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SLOTS_PER_WORKER = 3  # more would only share a core, and so run into wall clocks
MOST_SLOTS = 1900  # of one sandbox: its block of uids holds them and one more a worker


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
    total_memory_mb: int = Field(
        1024, ge=32, le=65536, description="memory of all processes of one call together, MiB"
    )
    tasks: int = Field(32, ge=1, le=4096, description="processes and threads of one call")
    scratch_mb: int = Field(32, ge=1, le=4096, description="writable scratch space, MiB")
    scratch_inodes: int = Field(1024, ge=16, le=1_000_000, description="files in the scratch space")
    output_kib: int = Field(
        64, ge=1, le=8192, description="kept of each output stream, KiB (head and tail)"
    )

    @model_validator(mode="after")
    def _total_holds_one(self) -> Limits:
        if self.total_memory_mb < self.memory_mb:
            raise ValueError(
                f"total_memory_mb = {self.total_memory_mb} is less than memory_mb = {self.memory_mb}, which one "
                "process alone may use: raise the first or lower the second"
            )
        return self


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT with a port up to 65535, got {address!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than localhost may be anyone's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
    runtime: str | None = operational(
        None,
        description="runtime of the Docker engine that the container uses, such as runsc (gVisor)",
    )
    workers: int | None = operational(
        None,
        ge=1,
        le=1024,
        description="dispatchers, each with fork servers of its own; one a usable core if null",
    )
    slots: int | None = operational(
        None,
        ge=1,
        le=MOST_SLOTS,
        description="calls running at once, over all workers; the others queue; 3 a worker if null",
    )
    recycle_after: int = operational(
        20_000, ge=1, description="calls after which a fork server is replaced by a fresh one"
    )
    queue: int = operational(
        50_000, ge=1, description="calls waiting at most; beyond it: overloaded"
    )
    queue_mb: int = operational(
        512,
        ge=1,
        description="code and input of all waiting calls at most, MiB; beyond it: overloaded",
    )
    http: str | None = operational(
        None, description="HOST:PORT to serve HTTP at as well, port 0 = any; a socket alone if null"
    )
    http_token_file: Path | None = operational(
        None, description="file with the token that HTTP clients must send; needed off loopback"
    )
    start_timeout_s: float = operational(
        60.0, gt=0, description="the sandbox must answer within this time"
    )

    @field_validator("http")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @model_validator(mode="after")
    def _token_off_loopback(self) -> SandboxConfig:
        if self.http is None or self.http_token_file is not None:
            return self
        host, _ = split_address(self.http)
        if not is_loopback(host):
            raise ValueError(
                f"http: {self.http!r} can be reached from other machines, where whoever finds it may run "
                "code: set http_token_file to a file that holds a token, or bind to 127.0.0.1"
            )
        return self

    @property
    def slots_of_workers(self) -> list[int]:
        """Slots of each dispatcher, on this machine: as equal as can be, and none without any."""
        workers = self.workers or len(os.sched_getaffinity(0))
        slots = self.slots or min(MOST_SLOTS, SLOTS_PER_WORKER * workers)
        workers = min(workers, slots)
        return [slots // workers + (index < slots % workers) for index in range(workers)]

    @property
    def all_slots(self) -> int:
        return sum(self.slots_of_workers)
