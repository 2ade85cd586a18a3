"""Stage `evaluate`: benchmarks on the final model, asked as in training (agentic, with the tool).

The model is first exported to outputs/model and checked, and that copy is what the engines load. What each
problem came to is appended to a file a benchmark, chunk by chunk, so a killed stage asks nothing twice; all
figures are computed from those files. A problem whose prompt is longer than the budget is counted as
unsolved and reported, never dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from rl.config import TemplateConfig
from rl.policy import Policy
from rl.template import Template
from rl.trajectory import Problem, Rollout, StopReason
from sandbox.errors import InfrastructureError
from tasks.benchmarks.find import Sources, find
from tasks.benchmarks.protocol import Benchmark
from tasks.config import EvaluateConfig, HeldOutConfig
from tasks.export import check, export
from tasks.held_out import DEADLINE_S
from tasks.scores import Attempt, Scores, score_attempts
from tasks.serving import serving
from tasks.stage import StageContext, write_atomic
from tasks.transcript import Transcript, transcribe

CHUNK_ROLLOUTS = 512  # asked at once; what a killed stage loses at most
SHOWN_PROBLEMS = 20  # of each benchmark at most, spread over it, of which transcripts are kept
SHOWN_SAMPLES = 2


class Answered(BaseModel):
    """What one problem came to: a line of a benchmark's file. No attempts = its prompt was too long."""

    model_config = ConfigDict(extra="forbid")

    id: str
    attempts: list[Attempt]
    isolation: list[str] = []
    weight_version: int | None = None
    transcripts: list[Transcript] = []


@dataclass(frozen=True)
class Asking:
    """A benchmark with its problems and the file of what they came to."""

    benchmark: Benchmark
    problems: list[Problem]
    file: Path
    shown: frozenset[str]  # ids of problems whose transcripts are kept

    @classmethod
    def open(cls, benchmark: Benchmark, directory: Path) -> Asking:
        problems = benchmark.problems()
        # Another content of a file is another benchmark, even under the same name.
        digest = hashlib.sha256(
            json.dumps([asdict(problem) for problem in problems]).encode()
        ).hexdigest()[:8]
        every = math.ceil(len(problems) / SHOWN_PROBLEMS)
        shown = frozenset(problem.id for problem in problems[::every])
        return cls(benchmark, problems, directory / f"{benchmark.name}-{digest}.jsonl", shown)

    def answered(self) -> dict[str, Answered]:
        """By problem id; a line that a kill cut in half is taken out."""
        if not self.file.is_file():
            return {}
        text = self.file.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.file.write_text(whole)
        rows = [Answered.model_validate_json(line) for line in whole.splitlines()]
        return {row.id: row for row in rows}

    def left(self) -> list[Problem]:
        done = self.answered()
        return [problem for problem in self.problems if problem.id not in done]

    def add(self, rows: Sequence[Answered]) -> None:
        with self.file.open("a") as out:
            out.writelines(row.model_dump_json() + "\n" for row in rows)


def run(ctx: StageContext) -> None:
    """The stage body."""
    config = ctx.section(EvaluateConfig, "evaluate")
    curated = ctx.input("curate") if "curate" in ctx.stage.spec.inputs else None
    sources = Sources(curated, ctx.section(HeldOutConfig, "held_out").problems)
    askings = [
        Asking.open(benchmark, ctx.checkpoints) for benchmark in find(config.benchmarks, sources)
    ]
    model_dir = _exported(ctx, config)
    _set_aside_long_prompts(ctx, askings, config, model_dir)
    if any(asking.left() for asking in askings):
        asyncio.run(_ask(ctx, config, askings, model_dir))
    _sum_up(ctx, config, askings, model_dir)


def _exported(ctx: StageContext, config: EvaluateConfig) -> Path:
    """The model to evaluate: our own is exported, one given from outside is taken as it is."""
    template = ctx.section(TemplateConfig, "template")
    directory = ctx.model_dir
    if ctx.stage.spec.model is None:
        directory = ctx.outputs / "model"
        export(ctx.model_dir, directory, config.sampling)
    facts = check(directory, template)
    ctx.log(
        f"the model loads: {facts.architecture}, {facts.parameters:,} parameters, {facts.dtype} ({directory})"
    )
    ctx.result(model=asdict(facts))
    return directory


def _set_aside_long_prompts(
    ctx: StageContext, askings: Sequence[Asking], config: EvaluateConfig, model_dir: Path
) -> None:
    from transformers import AutoTokenizer

    template = Template(
        AutoTokenizer.from_pretrained(model_dir), ctx.section(TemplateConfig, "template")
    )
    limit = config.rollout.prompt_tokens
    for asking in askings:
        lengths = {problem.id: len(template.prompt_ids(problem.text)) for problem in asking.left()}
        long = {name: tokens for name, tokens in lengths.items() if tokens > limit}
        asking.add([Answered(id=name, attempts=[]) for name in long])
        if long:
            ctx.log(
                f"{asking.benchmark.name}: {len(long)} of {len(asking.problems)} prompts are longer than "
                f"evaluate.rollout.prompt_tokens ({limit}) and count as unsolved; the longest has {max(long.values())}"
            )


async def _ask(
    ctx: StageContext, config: EvaluateConfig, askings: Sequence[Asking], model_dir: Path
) -> None:
    tool_name = ctx.section(TemplateConfig, "template").tool_name
    size = max(1, CHUNK_ROLLOUTS // config.samples)
    total = sum(len(asking.problems) for asking in askings)
    async with serving(ctx, model_dir, [config.rollout]) as policy:
        for asking in askings:
            left = asking.left()
            ctx.log(f"{asking.benchmark.name}: {len(left)} problems, {config.samples} samples each")
            for start in range(0, len(left), size):
                if ctx.stopping:
                    ctx.stop()
                done = total - sum(len(other.left()) for other in askings)
                chunk = left[start : start + size]
                groups = await _collect(ctx, policy, config, chunk, done, total)
                asking.add(
                    [_judge(asking, *pair, tool_name) for pair in zip(chunk, groups, strict=True)]
                )


async def _collect(
    ctx: StageContext,
    policy: Policy,
    config: EvaluateConfig,
    chunk: list[Problem],
    done: int,
    total: int,
) -> list[list[Rollout]]:
    rollouts = config.samples * len(chunk)
    every = max(1, rollouts // 10)

    def on_rollout(finished: int, asked: int) -> None:
        if finished % every == 0 or finished == asked:
            ctx.progress(done + len(chunk) * finished // asked, total)

    return await policy.collect(
        chunk, config.samples, config.rollout, config.sampling, DEADLINE_S, on_rollout
    )


def _judge(asking: Asking, problem: Problem, group: list[Rollout], tool_name: str) -> Answered:
    for rollout in group:
        if rollout.stop is StopReason.ERROR:
            raise InfrastructureError(f"{asking.benchmark.name}, {problem.id}: {rollout.error}")
        rollout.reward = asking.benchmark.reward(problem, rollout)
    shown = group[:SHOWN_SAMPLES] if problem.id in asking.shown else []
    return Answered(
        id=problem.id,
        attempts=[Attempt.of(rollout) for rollout in group],
        isolation=sorted({rollout.isolation for rollout in group if rollout.isolation}),
        weight_version=group[0].weight_version,
        transcripts=[
            transcribe(asking.benchmark.name, problem, rollout, tool_name) for rollout in shown
        ],
    )


def _sum_up(
    ctx: StageContext, config: EvaluateConfig, askings: Sequence[Asking], model_dir: Path
) -> None:
    """Figures into the stage's results and metrics, everything into outputs/."""
    results: dict[str, dict[str, Any]] = {}
    rows: list[Answered] = []
    for asking in askings:
        done = asking.answered()
        answered = [done[problem.id] for problem in asking.problems]
        scores = score_attempts([row.attempts for row in answered])
        too_long = sum(not row.attempts for row in answered)
        name = asking.benchmark.name
        results[name] = scores.as_dict() | {"prompt_too_long": too_long}
        rows += answered
        ctx.log(_line(name, config.samples, scores))
        ctx.metrics(
            0,
            {
                f"{name}/{key}": value
                for key, value in results[name].items()
                if isinstance(value, float)
            },
        )

    first = results[askings[0].benchmark.name]
    ctx.result(benchmarks=results, samples=config.samples)
    ctx.result(
        **{
            key: first[key]
            for key in (
                "accuracy",
                "accuracy_stderr",
                "mean_tokens",
                "stop_reasons",
                "tool_error_rate_correct",
            )
        }
    )
    versions = {row.weight_version for row in rows if row.weight_version is not None}
    ctx.ran_on(
        isolation="+".join(sorted({name for row in rows for name in row.isolation})),
        weight_version=max(versions, default=0),
        model=str(model_dir),
    )
    record = {
        "model": str(model_dir),
        "samples": config.samples,
        "sampling": config.sampling.model_dump(),
        "rollout": config.rollout.model_dump(),
        "benchmarks": results,
    }
    write_atomic(ctx.outputs / "results.json", json.dumps(record, indent=2) + "\n")
    transcripts = [transcript for row in rows for transcript in row.transcripts]
    write_atomic(
        ctx.outputs / "samples.jsonl",
        "".join(transcript.model_dump_json() + "\n" for transcript in transcripts),
    )
    ctx.artifact(ctx.outputs / "results.json")
    ctx.artifact(ctx.outputs / "samples.jsonl")


def _line(name: str, samples: int, scores: Scores) -> str:
    return (
        f"{name}: avg@{samples} {scores.accuracy:.3f} ± {scores.accuracy_stderr:.3f}, pass@{samples} "
        f"{scores.pass_at_k:.3f}, {scores.mean_tokens:.0f} tokens, tool errors {scores.tool_error_rate:.3f} "
        f"(in correct rollouts {scores.tool_error_rate_correct:.3f})"
    )
