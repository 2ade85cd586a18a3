"""The report's tables as plain data, which the page and the Markdown file both show.

Figures that a stage does not have are a dash: an absent number must never look like a zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tasks.report.collect import FEW, RL, Record, StageRecord

NONE = "–"
FAILED = ("failed calls", "in correct rollouts")


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column names the row."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""


def results(record: Record) -> Table:
    """What each stage came to."""
    return Table(
        "After each stage",
        [
            "stage",
            "held-out accuracy",
            "reward",
            "failed calls in correct rollouts",
            "tokens",
            "clipped",
            "groups kept",
        ],
        [_result_row(record.stages[name]) for name in ("sft", *RL)],
        f"Held-out accuracy is avg@k ± its standard error. The other figures are means over the first → last {FEW} "
        "steps, of all sampled rollouts, before selection; clipped is the share that reached the length cap.",
    )


def _result_row(stage: StageRecord) -> list[str]:
    return [
        stage.name,
        accuracy(stage.result("accuracy"), stage.result("accuracy_stderr")),
        _change(stage.first_last("reward"), percent),
        _change(stage.first_last("tool_error_rate_correct"), percent),
        _change(stage.first_last("response_tokens"), whole),
        _change(stage.first_last("stop/length"), percent),
        _change(stage.first_last("groups/kept"), percent),
    ]


def tool_time(record: Record) -> Table:
    """What the tools cost the rollouts of each RL stage."""
    return Table(
        "Tool time",
        [
            "stage",
            "calls a step",
            "seconds a call",
            "99th percentile",
            "of it queued",
            "CPU",
            "waited for tools",
            "repeated calls",
        ],
        [_tool_row(record.stages[name]) for name in RL],
        "Means over the stage's steps, of calls that the sandbox served; seconds from call to result. Waited for "
        "tools is a share of the rollouts' own time. A call is repeated when the sandbox, not the program, failed.",
    )


def _tool_row(stage: StageRecord) -> list[str]:
    def mean(key: str, show: Any) -> str:
        values = stage.values(f"tool/{key}")
        return show(sum(values) / len(values)) if values else NONE

    return [
        stage.name,
        mean("calls", whole),
        mean("seconds_mean", thousandths),
        mean("seconds_p99", thousandths),
        mean("queue_seconds_mean", thousandths),
        mean("cpu_seconds_mean", thousandths),
        mean("wait_share", percent),
        mean("retries", number),
    ]


def benchmarks(record: Record) -> Table:
    """What stage evaluate found."""
    stage = record.stages["evaluate"]
    k = stage.result("samples")
    return Table(
        "Benchmarks of the final model",
        [
            "benchmark",
            "problems",
            f"avg@{k}",
            f"pass@{k}",
            "tokens",
            "tool calls",
            *FAILED,
            "ended as",
        ],
        [
            _benchmark_row(name, figures)
            for name, figures in (stage.result("benchmarks") or {}).items()
        ],
        "Failed calls are a share of all calls. A problem whose prompt is too long counts as unsolved.",
    )


def _benchmark_row(name: str, figures: dict[str, Any]) -> list[str]:
    long = figures["prompt_too_long"]
    ends = [f"{reason} {count}" for reason, count in figures["stop_reasons"].items() if count]
    return [
        name,
        f"{figures['problems']}" + (f" ({long} too long)" if long else ""),
        accuracy(figures["accuracy"], figures["accuracy_stderr"]),
        percent(figures["pass_at_k"]),
        whole(figures["mean_tokens"]),
        number(figures["tool_calls"]),
        percent(figures["tool_error_rate"]),
        percent(figures["tool_error_rate_correct"]),
        ", ".join(ends),
    ]


def recipe(record: Record) -> Table:
    """What the three RL stages were asked to do."""
    pools = {name: record.stages["curate"].result("pool") for name in RL}
    pools["rl3"] = record.stages["hard_pool"].result("hard")
    settings = [record.stages[name].sections["rl"] for name in RL]
    lines = [
        ("problems in the pool", [_text(pools[name]) for name in RL]),
        ("steps", [_text(rl["steps"]) for rl in settings]),
        ("prompts a step", [_text(rl["prompts"]) for rl in settings]),
        (
            "rollouts sampled → kept",
            [f"{rl['roc']['rollouts']} → {rl['roc']['kept']}" for rl in settings],
        ),
        ("selection", [rl["roc"]["selection"] for rl in settings]),
        ("response budget, tokens", [_text(rl["rollout"]["response_tokens"]) for rl in settings]),
        ("assistant turns at most", [_text(rl["rollout"]["turns"]) for rl in settings]),
        ("optimizer state", [rl["optimizer"]["state"] for rl in settings]),
        ("learning rate", [f"{rl['optimizer']['lr']:g}" for rl in settings]),
        ("warm-up steps", [_text(rl["optimizer"]["warmup_steps"]) for rl in settings]),
        (
            "clip range",
            [f"{rl['loss']['clip_low']:g} / {rl['loss']['clip_high']:g}" for rl in settings],
        ),
    ]
    return Table(
        "The RL recipe of this run",
        ["setting", *RL],
        [[name, *cells] for name, cells in lines],
        _sft_note(record),
    )


def _sft_note(record: Record) -> str:
    stage = record.stages["sft"]
    sft, model = stage.sections["sft"], stage.sections["model"]
    losses = stage.values("sft/loss")
    ended = f", loss {losses[0]:.2f} → {losses[-1]:.3f}" if losses else ""
    return (
        f"Before it: SFT of the model {model['base']}, {stage.manifest.steps} steps, batch {sft['batch']}, "
        f"learning rate {sft['lr']:g}{ended}. RL has no KL term, no entropy term."
    )


def machinery(record: Record) -> Table:
    """What ran each stage, as the components themselves reported it."""
    return Table(
        "What ran it",
        [
            "stage",
            "seconds",
            "engine",
            "vLLM",
            "isolation",
            "sandbox calls",
            "weight version",
            "fingerprint",
        ],
        [_machinery_row(stage) for stage in record.stages.values()],
        f"Seed {record.seed}. Isolation is what the sandbox's own responses report. Sandbox calls are those of the "
        "process that finished the stage.",
    )


def _machinery_row(stage: StageRecord) -> list[str]:
    ran = stage.manifest.ran_on
    return [
        stage.name,
        whole(stage.manifest.seconds),
        str(ran.get("engine", NONE)).rpartition(".")[2],
        _text(ran.get("vllm_version")),
        _text(ran.get("isolation")),
        _text(ran.get("sandbox_calls")),
        _text(ran.get("weight_version")),
        stage.manifest.fingerprint,
    ]


def headline(record: Record) -> str:
    """The result in one sentence."""
    stages = record.evaluated
    if len(stages) < 2:
        return "Too few stages were evaluated to compare."
    first, last = stages[0], stages[-1]
    change = last.result("accuracy") - first.result("accuracy")
    errors = [stage.result("accuracy_stderr") for stage in (first, last)]
    sentence = (
        f"Accuracy on held-out problems went from {accuracy(first.result('accuracy'), errors[0])} after {first.name} "
        f"to {accuracy(last.result('accuracy'), errors[1])} after {last.name}"
    )
    if None in errors or not any(errors):
        return sentence + "."
    sigmas = change / math.hypot(*errors)
    return (
        f"{sentence}: {100 * change:+.1f} points, {sigmas:+.1f} standard errors of the difference."
    )


def accuracy(value: float | None, stderr: float | None) -> str:
    if value is None:
        return NONE
    return f"{100 * value:.1f}" + (f" ± {100 * stderr:.1f}" if stderr is not None else "") + " %"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def thousandths(value: float) -> str:
    return f"{value:.3f}"


def number(value: float) -> str:
    return f"{value:.2f}"


def _change(pair: tuple[float, float] | None, show: Any) -> str:
    return NONE if pair is None else f"{show(pair[0]).removesuffix(' %')} → {show(pair[1])}"


def _text(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return NONE if value in (None, "") else str(value)
