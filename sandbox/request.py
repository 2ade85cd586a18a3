"""What a client may ask for: one call, the same over the socket and over HTTP, checked in one place."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, ValidationError, model_validator

from sandbox.config import Limits, Section
from sandbox.image.server import wire

MAX_INPUT = 16 << 20  # characters of code, history and standard input together
FIXED_LIMITS = ("scratch_mb", "scratch_inodes")  # the scratch spaces are made when the box starts


def _text(value: object) -> str:
    """Any str: pydantic's own check refuses lone surrogates, which a program's author may well write."""
    if not isinstance(value, str):
        raise ValueError("expected a string")
    return value


Text = Annotated[str, PlainValidator(_text)]


class BadCall(ValueError):
    """A call that this sandbox cannot run as asked; the message names the field."""


class CallRequest(Section):
    """One program to run."""

    code: Text
    stdin: Text = ""
    limits: Limits | None = None  # what it leaves out is as configured
    mode: Literal["script", "cell"] = "script"
    history: list[Text] = Field(default_factory=list)  # earlier cells
    tag: Text | None = Field(None, max_length=200)  # comes back with the outcome
    deadline_s: float | None = Field(
        None, gt=0
    )  # from arrival; after it the answer is worth nothing

    @model_validator(mode="after")
    def _size_allowed(self) -> CallRequest:
        if self.size > MAX_INPUT:
            raise ValueError(
                f"code, history and stdin have {self.size} characters together, "
                f"at most {MAX_INPUT} are allowed"
            )
        if self.history and self.mode == "script":
            raise ValueError("history: only mode 'cell' has one, got mode 'script'")
        return self

    @property
    def size(self) -> int:
        return len(self.code) + len(self.stdin) + sum(map(len, self.history))

    def inner(self, defaults: Limits) -> wire.Message:
        """The request as the box gets it. BadCall for a limit that one call cannot change."""
        limits = defaults.model_dump()
        if self.limits is not None:
            limits |= self.limits.model_dump(exclude_unset=True)
        for name in FIXED_LIMITS:
            if limits[name] != getattr(defaults, name):
                raise BadCall(
                    f"limits.{name}: this sandbox was started with {getattr(defaults, name)}, which one "
                    f"call cannot change, got {limits[name]}"
                )
        return {
            "op": "run",
            "code": self.code,
            "stdin": self.stdin,
            "limits": limits,
            "mode": self.mode,
            "history": self.history,
        }


def complaint(error: ValidationError) -> str:
    """The errors of a request in one line, each with its field."""
    return "; ".join(_one_complaint(detail) for detail in error.errors(include_url=False))


def _one_complaint(detail: Any) -> str:
    field = ".".join(map(str, detail["loc"]))
    message = str(detail["msg"]).removeprefix("Value error, ")
    if isinstance(detail["input"], (dict, list, BaseModel)):
        return f"{field}: {message}" if field else message
    return f"{field}: {message}, got {_short(detail['input'])}"


def _short(value: object, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
