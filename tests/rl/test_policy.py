"""Real vLLM engines and a real sandbox: rollouts, weight pushes, an engine that dies."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import psutil
import pytest

from rl import weights
from rl.config import (
    EngineConfig,
    LearnerConfig,
    LossConfig,
    OptimizerConfig,
    RolloutConfig,
    SamplingConfig,
    TemplateConfig,
)
from rl.engine import EngineSpec
from rl.learners import LearnerGroup
from rl.policy import Policy
from rl.samples import sample
from rl.tools import Tools
from rl.trajectory import Problem, StopReason
from sandbox.config import Limits, SandboxConfig
from tasks.config import TinyModelConfig
from tasks.tiny import build_model, build_tokenizer

ENGINE = EngineConfig(
    dtype="float32", enforce_eager=True, max_num_seqs=64, block_size=32, kv_memory_mb=64
)
LEARNER = LearnerConfig(dtype="float32", micro_batch_tokens=4096, activation_checkpointing=False)
BUDGET = RolloutConfig(prompt_tokens=256, response_tokens=48, turns=2)
PROBLEMS = [Problem(f"p{i}", f"What is {i} + {i}?", str(2 * i)) for i in range(4)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["What is 1 + 1?"] * 9, 500, TemplateConfig())
    tokenizer.save_pretrained(directory)
    tiny = TinyModelConfig(hidden=64, layers=2, heads=2, mlp=64)
    build_model(tokenizer, tiny, 512, 0).save_pretrained(directory)
    return directory


async def collect(policy):
    return await policy.collect(PROBLEMS, 4, BUDGET, SamplingConfig(), 120)


async def test_rollouts_weights_and_a_dead_engine(cluster, model_dir):
    """One start serves all of it, because a start is most of the time."""
    tools = Tools(SandboxConfig(slots=2))
    await tools.start()
    spec = EngineSpec(
        model_dir,
        ENGINE,
        TemplateConfig(),
        Limits(),
        BUDGET.context_tokens,
        "cpu",
        0,
        tools.directory,
    )
    policy = Policy(spec, ENGINE.model_copy(update={"count": 2}), cluster)
    learner = LearnerGroup(
        model_dir,
        LEARNER,
        OptimizerConfig(lr=1e-2, warmup_steps=0),
        LossConfig(mismatch_limit=9),
        cluster,
        0,
    )
    channel = weights.channel()
    try:
        facts, _ = await asyncio.gather(policy.start(), learner.start())
        kv_bytes_per_token = 2 * 2 * 64 * 4  # keys and values, layers, width, float32
        assert facts["kv_tokens"] == pytest.approx((64 << 20) / kv_bytes_per_token, rel=0.02)
        groups = await collect(policy)
        rollouts = [r for group in groups for r in group]
        assert [len(group) for group in groups] == [4] * 4
        assert all(r.stop is not StopReason.ERROR and r.weight_version == 0 for r in rollouts)
        assert all(len(r.response_ids) <= BUDGET.response_tokens for r in rollouts)

        first = rollouts[0]
        ids = first.prompt_ids + first.response_ids
        before = await learner.logprobs(ids)
        np.testing.assert_allclose(await policy.score(ids), before, atol=1e-4)
        sampled = [p for p, m in zip(first.logprobs, first.mask, strict=True) if m]
        theirs = [
            p for p, m in zip(before[len(first.prompt_ids) - 1 :], first.mask, strict=True) if m
        ]
        np.testing.assert_allclose(sampled, theirs, atol=1e-4)

        rows = [sample(r, (-1.0) ** i, 1 / 400) for i, r in enumerate(rollouts)]
        for version in (1, 2):
            stats = await learner.update([rows])
            assert math.isfinite(stats["gradient_norm"])
            path = await learner.publish(channel, version, "float32")
            await policy.load_weights(path, version)
            after = await learner.logprobs(ids)
            np.testing.assert_allclose(await policy.score(ids), after, atol=1e-4)
            assert np.abs(np.array(after) - before).max() > 0.05
            before = after

        # vLLM's own process dies; the actor around it goes too, and its rollouts start again
        pending = asyncio.create_task(collect(policy))
        await asyncio.sleep(0.05)
        for pid in facts["pids"][1:]:
            psutil.Process(pid).kill()
        groups = await pending
        assert all(r.stop is not StopReason.ERROR for group in groups for r in group)
        assert {r.weight_version for group in groups for r in group} == {2}
        np.testing.assert_allclose(await policy.score(ids), before, atol=1e-4)
    finally:
        await policy.close()
        learner.close()
        await tools.close()
