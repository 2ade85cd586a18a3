"""The short evaluation after sft and each RL stage, on problems that no stage trains on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rl.policy import Policy
from tasks.config import HeldOutConfig
from tasks.problems import read_problems
from tasks.scores import Scores, score
from tasks.serving import serving
from tasks.stage import StageContext

DEADLINE_S = 7200.0


def evaluate_held_out(ctx: StageContext, model_dir: Path, step: int) -> Scores:
    """Start engines on `model_dir`, evaluate, stop them. Results go to the stage's results and metrics."""

    async def run() -> Scores:
        budget = ctx.section(HeldOutConfig, "held_out").rollout
        async with serving(ctx, model_dir, [budget]) as policy:
            return await score_held_out(ctx, policy, step)

    return asyncio.run(run())


async def score_held_out(ctx: StageContext, policy: Policy, step: int) -> Scores:
    """The same on engines that are already up."""
    config = ctx.section(HeldOutConfig, "held_out")
    problems = read_problems(ctx.input("curate") / "held_out.jsonl")[: config.problems]
    ctx.log(f"held-out evaluation: {len(problems)} problems, {config.samples} samples each")
    groups = await policy.collect(problems, config.samples, config.rollout, config.sampling, DEADLINE_S)
    scores = score(groups)
    ctx.result(
        accuracy=scores.accuracy,
        accuracy_stderr=scores.as_dict()["accuracy_stderr"],
        held_out=scores.as_dict(),
    )
    isolations = {r.isolation for group in groups for r in group if r.isolation}
    ctx.ran_on(isolation="+".join(sorted(isolations)), weight_version=groups[0][0].weight_version)
    ctx.metrics(step, {f"held_out/{k}": v for k, v in scores.as_dict().items() if isinstance(v, float)})
    ctx.log(
        f"held-out avg@{config.samples} {scores.accuracy:.3f} ± {scores.accuracy_stderr:.3f}, "
        f"{scores.mean_tokens:.0f} tokens, tool errors {scores.tool_error_rate:.3f} "
        f"(in correct rollouts {scores.tool_error_rate_correct:.3f})"
    )
    return scores
