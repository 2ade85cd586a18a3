"""Ray, sandboxes and engines for the time that a stage body needs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import ray

from rl import cluster
from rl.config import ClusterConfig, EngineConfig, RolloutConfig, TemplateConfig
from rl.engine import EngineSpec
from rl.policy import Policy
from rl.tools import Tools
from sandbox.config import SandboxConfig
from tasks.stage import StageContext


@asynccontextmanager
async def serving(
    ctx: StageContext, model_dir: Path, budgets: list[RolloutConfig], *alongside: Awaitable[None]
) -> AsyncIterator[Policy]:
    """Engines on `model_dir` with room for the largest of `budgets`; everything ends with the block.

    `alongside` is awaited while the engines start: starting takes long and mostly waits for imports.
    """
    settings = ctx.section(ClusterConfig, "cluster")
    cluster.start(settings)
    ctx.catch_signals()
    try:
        tools = Tools(ctx.section(SandboxConfig, "sandbox"))
        await tools.start()
        policy = Policy(
            EngineSpec(
                model_dir=model_dir,
                engine=ctx.section(EngineConfig, "engine"),
                template=ctx.section(TemplateConfig, "template"),
                limits=ctx.section(SandboxConfig, "sandbox").limits,
                context_tokens=max(budget.context_tokens for budget in budgets),
                device=settings.device,
                seed=ctx.seed,
                sandboxes=tools.directory,
            ),
            ctx.section(EngineConfig, "engine"),
            settings,
        )
        ctx.log(f"starting {policy.config.count} engine(s) on {model_dir}; sandbox: {tools.isolation}")
        facts, *_ = await asyncio.gather(policy.start(), *alongside)
        ctx.ran_on(
            engine=facts["engine"], vllm_version=facts["vllm_version"], device=facts["device"]
        )
        try:
            yield policy
        finally:
            calls = await tools.calls()
            ctx.ran_on(sandbox_calls=sum(calls.values()), sandbox_calls_by_status=calls)
            await policy.close()
            await tools.close()
    finally:
        ray.shutdown()
