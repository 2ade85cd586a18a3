"""Everything that the report says, read once from the finished stages before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.spec import Manifest
from tasks.stage import Stage, StageContext, read_jsonl
from tasks.transcript import Transcript

RL = ("rl1", "rl2", "rl3")
FEW = 5  # steps whose mean stands for a stage's beginning and end
Rows = list[dict[str, Any]]  # of metrics.jsonl: step, time, values


@dataclass(frozen=True)
class StageRecord:
    """A finished stage: what was asked, what it came to, its numbers by step."""

    manifest: Manifest
    sections: dict[str, Any]
    rows: Rows

    @property
    def name(self) -> str:
        return self.manifest.stage

    def result(self, key: str) -> Any:
        """A figure of the stage's results, None if it has none of that name."""
        return self.manifest.results.get(key)

    def values(self, key: str) -> list[float]:
        """A metric over the stage's steps."""
        return [row["values"][key] for row in self.rows if key in row["values"]]

    def first_last(self, key: str) -> tuple[float, float] | None:
        """Means of a metric over the first and the last few steps."""
        values = self.values(key)
        return (_mean(values[:FEW]), _mean(values[-FEW:])) if values else None


@dataclass(frozen=True)
class Record:
    """A finished run of the recipe."""

    seed: int
    stages: dict[str, StageRecord]
    transcripts: list[Transcript]

    @property
    def evaluated(self) -> list[StageRecord]:
        """Stages after which the held-out problems were asked, in order."""
        return [
            self.stages[name]
            for name in ("sft", *RL)
            if self.stages[name].result("accuracy") is not None
        ]


def collect(ctx: StageContext) -> Record:
    stages = {
        name: StageRecord(
            manifest=ctx.input_manifest(name),
            sections=Stage.open(ctx.input_stage(name)).spec.sections,
            rows=read_jsonl(ctx.input_stage(name) / "metrics.jsonl"),
        )
        for name in ctx.stage.spec.inputs
    }
    samples = ctx.input("evaluate") / "samples.jsonl"
    transcripts = [
        Transcript.model_validate_json(line) for line in samples.read_text().splitlines()
    ]
    return Record(ctx.seed, stages, transcripts)


def pick(transcripts: Sequence[Transcript]) -> list[Transcript]:
    """Rollouts worth reading: solved, solved after a failed call, wrong, unfinished; one each, if there are."""
    solved = [one for one in transcripts if one.reward > 0.5]
    other = [one for one in transcripts if one.reward <= 0.5]
    kinds = (
        [one for one in solved if one.failed_calls == 0],
        [one for one in solved if one.failed_calls > 0],
        [one for one in other if one.stop == "answered"],
        [one for one in other if one.stop != "answered"],
    )
    return [kind[0] for kind in kinds if kind]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
