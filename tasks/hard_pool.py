"""Stage `hard_pool`: drop what the rl2 policy always solves (section 4: 42K problems become 17.3K)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rl.config import RolloutConfig, SamplingConfig
from rl.trajectory import Problem, StopReason
from sandbox.errors import InfrastructureError, UserError
from tasks.config import HardPoolConfig
from tasks.held_out import DEADLINE_S
from tasks.problems import read_problems
from tasks.serving import serving
from tasks.stage import StageContext

CHUNK = 32  # problems asked at once; what a killed stage loses at most


def run(ctx: StageContext) -> None:
    """The stage body. Counts of solved samples are kept a problem, so a killed stage asks nothing twice."""
    solved_file = ctx.checkpoints / "solved.jsonl"
    problems = read_problems(ctx.input("curate") / "pool.jsonl")
    asyncio.run(_ask(ctx, problems, solved_file))
    samples = ctx.section(HardPoolConfig, "hard_pool").samples
    solved = _read(solved_file)
    hard = [problem for problem in problems if solved[problem.id] < samples]
    if not hard:
        raise UserError(
            f"all {len(problems)} problems of the pool were solved {samples} of {samples} times, so nothing is "
            "left for rl3: give curate more or harder problems, or raise hard_pool.samples"
        )
    rows = [{"id": p.id, "problem": p.text, "answer": p.answer} for p in hard]
    (ctx.outputs / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ctx.log(f"{len(hard)} of {len(problems)} problems stay: not solved {samples} of {samples} times")
    mean = sum(solved[p.id] for p in problems) / (samples * len(problems))
    ctx.result(pool=len(problems), hard=len(hard), accuracy=mean)


async def _ask(ctx: StageContext, problems: list[Problem], solved_file: Path) -> None:
    config, budget = ctx.section(HardPoolConfig, "hard_pool"), ctx.section(RolloutConfig, "rollout")
    done = _read(solved_file)
    left = [problem for problem in problems if problem.id not in done]
    if not left:
        return
    async with serving(ctx, ctx.model_dir, [budget]) as policy:
        isolations: set[str] = set()
        for start in range(0, len(left), CHUNK):
            if ctx.stopping:
                ctx.stop()
            chunk = left[start : start + CHUNK]
            groups = await policy.collect(chunk, config.samples, budget, SamplingConfig(), DEADLINE_S)
            with solved_file.open("a") as out:
                for problem, group in zip(chunk, groups, strict=True):
                    if any(r.stop is StopReason.ERROR for r in group):
                        raise InfrastructureError(f"{problem.id}: {next(r.error for r in group if r.error)}")
                    solved = sum(r.reward > 0.5 for r in group)
                    out.write(json.dumps({"id": problem.id, "solved": solved}) + "\n")
            isolations |= {r.isolation for group in groups for r in group if r.isolation}
            ctx.progress(len(problems) - len(left) + start + len(chunk), len(problems))
        ctx.ran_on(isolation="+".join(sorted(isolations)))


def _read(path: Path) -> dict[str, int]:
    """Problem id -> solved samples; a line that a kill cut in half is left out."""
    if not path.is_file():
        return {}
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    rows = map(json.loads, whole.splitlines())
    return {row["id"]: row["solved"] for row in rows}
