"""What curation produces, as data and as files.

Invariant: the files depend on the data alone, so the same settings and seed give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.trajectory import Problem
from tasks.stage import write_atomic

Message = dict[str, Any]  # role and content, as chat formats have it


@dataclass(frozen=True)
class Dataset:
    """SFT conversations, the problems that RL trains on, and the ones that nothing trains on."""

    sft: list[list[Message]]
    pool: list[Problem]
    held_out: list[Problem]

    def write(self, directory: Path) -> None:
        write_rows(directory / "sft.jsonl", ({"messages": messages} for messages in self.sft))
        for name, problems in (("pool", self.pool), ("held_out", self.held_out)):
            rows = ({"id": p.id, "problem": p.text, "answer": p.answer} for p in problems)
            write_rows(directory / f"{name}.jsonl", rows)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
