"""The report as Markdown, with the pictures beside it."""

from __future__ import annotations

import re

from tasks.report import tables
from tasks.report.collect import Record, pick
from tasks.report.tables import Table
from tasks.transcript import Transcript


def markdown(record: Record, picture: str) -> str:
    """`picture`: the path of the curves, relative to the file."""
    parts = [
        "# rStar2: report of a run",
        tables.headline(record),
        f"![Reward, tool errors, length and unfinished rollouts over the RL stages]({picture})",
        *(
            table(one(record))
            for one in (
                tables.results,
                tables.tool_time,
                tables.benchmarks,
                tables.recipe,
                tables.machinery,
            )
        ),
        "## Sample rollouts",
        *(_transcript(transcript) for transcript in pick(record.transcripts)),
    ]
    return "\n\n".join(parts) + "\n"


def table(one: Table) -> str:
    lines = [one.header, ["---"] + ["---:"] * (len(one.header) - 1), *one.rows]
    text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
    return f"## {one.title}\n\n{text}" + (f"\n\n{_cell(one.note)}" if one.note else "")


def _transcript(one: Transcript) -> str:
    lines = [
        f"Reward {one.reward:g}, ended as {one.stop}, {one.tokens} tokens, label {_cell(one.answer)}."
    ]
    lines.append(_block(one.problem))
    for turn in one.turns:
        lines.append(_block(turn.text))
        lines += [_block(f"[{call.status}]\n{call.result}") for call in turn.calls]
    return f"### {_cell(one.benchmark)}: {_cell(one.problem_id)}\n\n" + "\n\n".join(lines)


def _cell(text: str) -> str:
    """Text that neither ends a cell nor becomes a tag."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def _block(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"
