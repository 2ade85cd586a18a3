"""The learner on real ranks: one rank equals two, checkpoints reshard, an empty micro-batch is no harm."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import ray
import torch

from rl.config import ClusterConfig, LearnerConfig, LossConfig, OptimizerConfig, TemplateConfig
from rl.learner import Sample
from rl.learners import LearnerGroup
from tasks.config import TinyModelConfig
from tasks.tiny import build_model, build_tokenizer

IDS = list(range(5, 60))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["1 + 1 = 2"], 400, TemplateConfig())
    tokenizer.save_pretrained(directory)
    build_model(tokenizer, TinyModelConfig(hidden=64, layers=2, heads=2, mlp=64), 512, 0).save_pretrained(directory)
    return directory


def samples(count: int) -> list[Sample]:
    rng = np.random.default_rng(count)
    rows = []
    for i in range(count):
        n = int(rng.integers(10, 60))
        mask = np.ones(n, dtype=np.int8)
        mask[:4] = 0
        engine = np.full(n, -5.7, dtype=np.float32)
        rows.append(Sample(rng.integers(5, 250, n), mask, engine, 1.0 - 2 * (i % 2), 0.01))
    return rows


def group(model_dir, ranks: int, **loss: object) -> LearnerGroup:
    config = LearnerConfig(ranks=ranks, dtype="float32", micro_batch_tokens=128, activation_checkpointing=False)
    optimizer = OptimizerConfig(lr=1e-3, warmup_steps=2)
    return LearnerGroup(model_dir, config, optimizer, LossConfig(**loss), ClusterConfig(device="cpu"), 0)


@pytest.fixture(scope="module")
def trained(model_dir, cluster, tmp_path_factory):
    """Per number of ranks: stats of three updates, log-probabilities after, a checkpoint, one update more."""
    return asyncio.run(_train(model_dir, tmp_path_factory))


async def _train(model_dir, tmp_path_factory):
    results = {}
    for ranks in (1, 2):
        learner = group(model_dir, ranks)
        await learner.start()
        stats = [await learner.update([samples(n)]) for n in (9, 1, 6)]
        directory = tmp_path_factory.mktemp(f"checkpoint-{ranks}")
        before = await learner.logprobs(IDS)
        await learner.save(directory)
        await learner.update([samples(5)])
        results[ranks] = stats, before, directory, await learner.logprobs(IDS)
        learner.close()
    return results


async def test_two_ranks_equal_one(trained):
    (one, before_one, _, after_one), (two, before_two, _, after_two) = trained[1], trained[2]
    for a, b in zip(one, two, strict=True):
        for name in ("loss", "gradient_norm", "entropy", "mismatch_kl", "learned_tokens", "lr"):
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name
    assert np.allclose(before_one, before_two, atol=1e-4)
    assert np.allclose(after_one, after_two, atol=1e-4)
    assert not np.allclose(before_one, after_one, atol=1e-4)


async def test_warm_up_is_linear(trained):
    assert [stats["lr"] for stats in trained[1][0]] == pytest.approx([5e-4, 1e-3, 1e-3])


async def test_a_checkpoint_of_two_ranks_goes_on_with_one(trained, model_dir, tmp_path):
    _, before, directory, after = trained[2]
    learner = group(model_dir, 1)
    await learner.start()
    await learner.load(directory)
    assert np.allclose(await learner.logprobs(IDS), before, atol=1e-5)
    await learner.update([samples(5)])
    assert np.allclose(await learner.logprobs(IDS), after, atol=1e-4)
    await learner.export(tmp_path / "export", "float32")
    expected = await learner.logprobs(IDS)
    learner.close()

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0, :-1].log_softmax(-1)
    theirs = logits[torch.arange(len(IDS) - 1), torch.tensor(IDS[1:])]
    assert np.allclose(theirs.numpy(), expected, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "export").chat_template


async def test_several_updates_a_batch_use_the_old_policy(model_dir, cluster):
    learner = group(model_dir, 1, updates_per_batch=2, clip_low=0.01, clip_high=0.01)
    await learner.start()
    batch = samples(6)
    stats = await learner.update([batch, batch])
    learner.close()
    assert stats["clip_fraction"] > 0  # the second update's ratio is not 1


async def test_a_learner_that_is_not_finite_stops(model_dir, cluster):
    learner = group(model_dir, 1)
    await learner.start()
    bad = [Sample(s.ids, s.mask, s.engine_logprobs, float("nan"), s.weight) for s in samples(2)]
    with pytest.raises(ray.exceptions.RayTaskError, match="gradient norm is nan"):
        await learner.update([bad])
    learner.close()
