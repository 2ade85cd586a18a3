"""Stages `rl1`, `rl2`, `rl3`: GRPO-RoC from the previous stage's model (sections 3 and 4 of the report)."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from rl import weights
from rl.checkpoint import Checkpoints
from rl.config import ClusterConfig, EngineConfig, LearnerConfig, RLConfig
from rl.learners import LearnerGroup
from rl.metrics import stop_reasons
from rl.policy import Policy
from rl.pool import Pool
from rl.trainer import StepReport, Trainer
from sandbox.errors import UserError
from tasks.config import HeldOutConfig
from tasks.held_out import score_held_out
from tasks.problems import read_problems
from tasks.report.plots import plot_stage
from tasks.serving import serving
from tasks.stage import StageContext, read_metrics

FIRST_LAST = 5  # steps whose mean reward is reported as the stage's first and last


def run(ctx: StageContext) -> None:
    """The stage body; see `tasks/stage.py`."""
    asyncio.run(_run(ctx))


async def _run(ctx: StageContext) -> None:
    config = ctx.section(RLConfig, "rl")
    model_dir = ctx.model_dir
    learner = LearnerGroup(
        model_dir,
        ctx.section(LearnerConfig, "learner"),
        config.optimizer,
        config.loss,
        ctx.section(ClusterConfig, "cluster"),
        ctx.seed,
    )
    budgets = [config.rollout, ctx.section(HeldOutConfig, "held_out").rollout]
    channel = weights.channel()
    try:
        async with serving(ctx, model_dir, budgets, learner.start()) as policy:
            trainer = _trainer(ctx, config, policy, learner, channel)
            await _take_up(ctx, trainer)
            if not await trainer.run():
                ctx.stop()
            await _finish(ctx, trainer)
    finally:
        shutil.rmtree(channel, ignore_errors=True)


def _trainer(
    ctx: StageContext, config: RLConfig, policy: Policy, learner: LearnerGroup, channel: Path
) -> Trainer:
    pool_file = "hard_pool" if "hard_pool" in ctx.stage.spec.inputs else "curate"
    problems = read_problems(ctx.input(pool_file) / "pool.jsonl")
    reasons: Counter[str] = Counter()

    def on_step(report: StepReport) -> None:
        reasons.update(stop_reasons([r for group in report.groups for r in group]))
        ctx.metrics(report.step, report.metrics)
        ctx.result(stop_reasons=dict(reasons))
        shown = report.metrics
        ctx.progress(
            report.step,
            config.steps,
            reward=round(shown.get("reward", float("nan")), 3),
            tool_errors=round(shown.get("tool_error_rate", float("nan")), 3),
            tokens=round(shown.get("response_tokens", float("nan")), 1),
            tool_s=round(shown.get("tool/seconds_mean", float("nan")), 3),
        )
        if shown["skipped_update"]:
            ctx.log(f"step {report.step}: every group was rejected, no update")

    return Trainer(
        policy=policy,
        learner=learner,
        pool=Pool(problems, ctx.seed),
        config=config,
        checkpoints=Checkpoints(ctx.checkpoints, config.keep_checkpoints),
        channel=channel,
        engine_dtype=ctx.section(EngineConfig, "engine").dtype,
        seed=ctx.seed,
        on_step=on_step,
        stopping=lambda: ctx.stopping,
    )


async def _take_up(ctx: StageContext, trainer: Trainer) -> None:
    """Resume this stage, or start it: with the previous stage's optimizer, or a fresh one."""
    await trainer.resume()
    if trainer.step:
        ctx.log(f"resumed at step {trainer.step}")
        return
    if trainer.config.optimizer.state == "carry":
        await trainer.learner.load(_previous_optimizer(ctx))
        ctx.log("the previous stage's optimizer is carried on")
    if trainer.config.loss.updates_per_batch == 1:
        ctx.log("one update a batch: the ratio is 1 and clipping is inert")


def _previous_optimizer(ctx: StageContext) -> Path:
    for name in reversed(ctx.stage.spec.inputs):
        if (ctx.input(name) / "learner").is_dir():
            return ctx.input(name) / "learner"
    raise UserError(
        f"rl.{ctx.stage.spec.stage}.optimizer.state is 'carry', but no stage before it has an optimizer to "
        "carry; use 'fresh' or 'reset'"
    )


async def _finish(ctx: StageContext, trainer: Trainer) -> None:
    """Export the model and the learner's state, evaluate, and sum up."""
    found = trainer.checkpoints.latest()
    if found is None:
        raise AssertionError("the last step writes a checkpoint")
    for name in ("model", "learner"):
        shutil.rmtree(ctx.outputs / name, ignore_errors=True)
    await trainer.learner.export(ctx.outputs / "model", trainer.engine_dtype)
    shutil.copytree(found[1], ctx.outputs / "learner")
    scores = await score_held_out(ctx, trainer.policy, trainer.step)
    rows = read_metrics(ctx.dir / "metrics.jsonl")
    rewards = [row["values"]["reward"] for row in rows if "reward" in row["values"]]
    correct = [row["values"]["tool_error_rate_correct"] for row in rows if "reward" in row["values"]]
    ctx.result(
        reward_first5=float(np.mean(rewards[:FIRST_LAST])),
        reward_last5=float(np.mean(rewards[-FIRST_LAST:])),
        tool_error_rate_correct=float(np.mean(correct[-FIRST_LAST:])),
        mean_tokens=scores.mean_tokens,
    )
    ctx.ran_on(weight_version=trainer.weight_version)
    plot = ctx.outputs / "plots.png"
    plot_stage(rows, plot)
    ctx.artifact(plot)
