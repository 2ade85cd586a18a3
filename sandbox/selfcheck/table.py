"""Verdicts for people (a table and a summary per theme) and for programs (JSON)."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any

from sandbox.selfcheck.programs import THEMES
from sandbox.selfcheck.runner import State, Verdict

WIDTH = 118
NAME = 42
INDENT = " " * 6
THEME_OF = {program.name: theme for theme, programs in THEMES.items() for program in programs}


def table(isolation: str, verdicts: list[Verdict]) -> str:
    """One line a program; a promise that is broken is followed by what was seen."""
    lines = [f"sandbox selfcheck at isolation level {isolation}", ""]
    theme = ""
    for verdict in verdicts:
        if THEME_OF[verdict.program.name] != theme:
            theme = THEME_OF[verdict.program.name]
            lines.append(theme)
        lines += _row(verdict)
    return "\n".join([*lines, "", *_summary(isolation, verdicts)])


def as_json(isolation: str, verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "isolation": isolation,
        "broken": sum(verdict.state is State.BROKEN for verdict in verdicts),
        "programs": [
            {
                "theme": THEME_OF[verdict.program.name],
                "name": verdict.program.name,
                "promise": verdict.program.holds,
                "state": verdict.state.value,
                "why": verdict.why,
                "status": verdict.outcome and verdict.outcome.status.value,
                "wall_s": verdict.outcome and verdict.outcome.wall_s,
                "cpu_s": verdict.outcome and verdict.outcome.cpu_s,
            }
            for verdict in verdicts
        ],
    }


def _row(verdict: Verdict) -> list[str]:
    name, state = verdict.program.name, verdict.state
    if state is State.HELD:
        return [f"  {name:<{NAME}} held"]
    if state is State.NOT_PROMISED:
        return [f"  {name:<{NAME}} not promised here: {verdict.why}"]
    seen = textwrap.wrap(verdict.why, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return [f"  {name:<{NAME}} NOT HELD: {verdict.program.holds}", *seen]


def _summary(isolation: str, verdicts: list[Verdict]) -> list[str]:
    counts = Counter((THEME_OF[one.program.name], one.state) for one in verdicts)
    themes = [theme for theme in THEMES if any(key[0] == theme for key in counts)]
    lines = [f"{'theme':<16}" + "".join(f"{state.value:>20}" for state in State)]
    lines += [f"{t:<16}" + "".join(f"{counts[t, state]:>20}" for state in State) for t in themes]
    totals = Counter(verdict.state for verdict in verdicts)
    lines.append(f"{'all':<16}" + "".join(f"{totals[state]:>20}" for state in State))
    lines.append("")
    if broken := [one.program.name for one in verdicts if one.state is State.BROKEN]:
        lines.append(f"{isolation} BREAKS {len(broken)} OF ITS PROMISES: {', '.join(broken)}")
        lines.append("Look at one alone with: python -m sandbox selfcheck --only NAME")
    elif totals[State.HELD] == 0:
        lines.append(f"{isolation} promises none of these, so nothing was run.")
    else:
        lines.append(f"{isolation} holds everything that it promises.")
    return lines
