"""Curated data from local JSON lines: SFT conversations, the RL pool, held-out problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sandbox.errors import UserError
from tasks.config import CurateConfig
from tasks.curation.dataset import Dataset, Message
from tasks.problems import read_problems

ROLES = ("system", "user", "assistant", "tool")


def read(config: CurateConfig) -> Dataset:
    """The three files of `config`. Raises `UserError` naming key, file and row of what is wrong."""
    pool = read_problems(_path("pool_file", config.pool_file))
    held_out = read_problems(_path("held_out_file", config.held_out_file))
    kept_back = {" ".join(problem.text.split()) for problem in held_out}
    return Dataset(
        sft=read_conversations(_path("sft_file", config.sft_file)),
        pool=[problem for problem in pool if " ".join(problem.text.split()) not in kept_back],
        held_out=held_out,
    )


def read_conversations(path: Path) -> list[list[Message]]:
    """The `messages` of each row."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected JSON lines with the column messages")
    conversations = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                conversations.append(_conversation(f"{path}, row {number}", line))
    if not conversations:
        raise UserError(
            f"{path}: the file has no rows; expected JSON lines with the column messages"
        )
    return conversations


def _conversation(where: str, line: str) -> list[Message]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error})") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{where}: expected a column messages with a list of messages")
    for index, message in enumerate(messages):
        fault = _fault(message)
        if fault:
            raise UserError(f"{where}: message {index} {fault}")
    if all(message["role"] != "assistant" for message in messages):
        raise UserError(f"{where}: there is no assistant message, so there is nothing to train on")
    return messages


def _fault(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "is not an object with role and content"
    if message.get("role") not in ROLES:
        return f"has the role {message.get('role')!r}; expected one of {', '.join(ROLES)}"
    if message.get("tool_calls") and message.get("content") is None:
        return None
    if not isinstance(message.get("content"), str):
        return f"has a content of type {type(message.get('content')).__name__}; expected text"
    return None


def _path(key: str, value: str | None) -> Path:
    if value is None:
        raise UserError(
            f"curate.{key} is not set: source 'files' needs a JSONL file (or set curate.source to demo)"
        )
    return Path(value).expanduser()
