"""The report as one HTML file that needs nothing else: no script, no network, pictures inside.

Rollouts are text that a model wrote, so every text goes through `escape`, and the page's own policy forbids
scripts and requests. The SVGs are ours and the only markup that is not built here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tasks.report import tables
from tasks.report.collect import RL, Record, pick
from tasks.report.tables import Table
from tasks.transcript import Transcript

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(record: Record, curves: Sequence[str]) -> str:
    """`curves`: SVG elements."""
    body = [
        "<h1>rStar2: report of a run</h1>",
        f'<p class="lead">{escape(tables.headline(record))}</p>',
        _navigation(),
        _tiles(record),
        _table("results", tables.results(record)),
        '<h2 id="curves">Curves</h2>',
        '<p class="note">Thin lines are single steps, thick ones the mean of the last five. Stages follow each '
        "other on one axis.</p>",
        '<div class="curves">' + "".join(f"<figure>{svg}</figure>" for svg in curves) + "</div>",
        _table("tools", tables.tool_time(record)),
        _table("benchmarks", tables.benchmarks(record)),
        _table("recipe", tables.recipe(record)),
        '<h2 id="rollouts">Sample rollouts</h2>',
        '<p class="note">From the evaluation of the final model: chosen for how they ended, not for how they look.</p>',
        *(
            _rollout(transcript, number == 0)
            for number, transcript in enumerate(pick(record.transcripts))
        ),
        _table("machinery", tables.machinery(record)),
    ]
    css = (Path(__file__).parent / "page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>rStar2: report of a run</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _navigation() -> str:
    places = ("results", "curves", "tools", "benchmarks", "recipe", "rollouts", "machinery")
    return "<nav>" + "".join(f'<a href="#{place}">{place}</a>' for place in places) + "</nav>"


def _tiles(record: Record) -> str:
    last = record.stages[RL[-1]]
    first = next((record.stages[name] for name in RL if record.stages[name].values("reward")), last)
    pairs = {
        "held-out accuracy after RL": tables.accuracy(
            last.result("accuracy"), last.result("accuracy_stderr")
        ),
        "reward, first → last steps of RL": _span(
            first.first_last("reward"), last.first_last("reward")
        ),
        "failed calls in correct rollouts": _span(
            first.first_last("tool_error_rate_correct"), last.first_last("tool_error_rate_correct")
        ),
        "time of all stages": _clock(
            sum(stage.manifest.seconds for stage in record.stages.values())
        ),
    }
    tiles = (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in pairs.items()
    )
    return '<div class="tiles">' + "".join(tiles) + "</div>"


def _span(first: tuple[float, float] | None, last: tuple[float, float] | None) -> str:
    if first is None or last is None:
        return tables.NONE
    return f"{tables.percent(first[0]).removesuffix(' %')} → {tables.percent(last[1])}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _table(place: str, table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2 id="{place}">{escape(table.title)}</h2>\n<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n{note}"
    )


def _rollout(one: Transcript, unfolded: bool) -> str:
    verdict = (
        '<span class="solved">solved</span>'
        if one.reward > 0.5
        else '<span class="unsolved">not solved</span>'
    )
    repaired = (
        f", {one.failed_calls} failed call" + "s" * (one.failed_calls > 1)
        if one.failed_calls
        else ""
    )
    parts = [_said("problem", one.problem, "")]
    for turn in one.turns:
        parts.append(_said("model", turn.text, "model"))
        for call in turn.calls:
            parts.append(
                _said(
                    f"tool: {call.status}, {call.seconds:.2f} s",
                    call.result,
                    "failed" if call.failed else "ok",
                )
            )
    parts.append(f'<p class="note">Label: {escape(one.answer)}</p>')
    turns = "1 turn" if len(one.turns) == 1 else f"{len(one.turns)} turns"
    where = f'<span class="note">({escape(one.benchmark)}, {escape(one.problem_id)})</span>'
    return (
        f"<details{' open' if unfolded else ''}><summary>{verdict}{repaired}; ended as {escape(one.stop)}, "
        f"{turns}, {one.tokens:,} tokens {where}</summary>"
        f'<div class="rollout">{"".join(parts)}</div></details>'
    )


def _said(who: str, text: str, kind: str) -> str:
    return f'<p class="who">{escape(who)}</p><pre class="{kind}">{escape(text)}</pre>'
