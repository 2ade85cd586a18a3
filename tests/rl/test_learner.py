"""The learner on real ranks: what one rank learns, two learn, and plain torch without any of our code."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load_file

from rl.config import ClusterConfig, LearnerConfig, LossConfig, OptimizerConfig, TemplateConfig
from rl.learners import LearnerGroup
from rl.samples import Sample
from tasks.config import TinyModelConfig
from tasks.tiny import build_model, build_tokenizer

IDS = list(range(5, 60))
OPTIMIZER = OptimizerConfig(lr=1e-3, warmup_steps=2, gradient_clip=0.05)
BATCHES = (9, 1, 6)  # samples; one is fewer than two ranks
CAP = 2.0


@dataclass
class Trained:
    """Three updates, a checkpoint, and what one more update leads to."""

    stats: list[dict[str, float]]
    before: list[float]  # log-probabilities of IDS at the checkpoint
    checkpoint: Path
    after: list[float]
    exported: Path  # the model at the checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with tied embeddings, and one without."""
    made = {}
    for tied in (True, False):
        directory = tmp_path_factory.mktemp("tied" if tied else "untied")
        tokenizer = build_tokenizer(["1 + 1 = 2"], 400, TemplateConfig())
        tokenizer.save_pretrained(directory)
        model = build_model(
            tokenizer, TinyModelConfig(hidden=64, layers=2, heads=2, mlp=64), 512, 0
        )
        if not tied:
            model.config.tie_word_embeddings = False
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 1.5)
        model.save_pretrained(directory)
        made[tied] = directory
    return made


def samples(count: int) -> list[Sample]:
    rng = np.random.default_rng(count)
    rows = []
    for i in range(count):
        n = int(rng.integers(10, 60))
        mask = np.ones(n, dtype=np.int8)
        mask[:4] = 0
        engine = rng.normal(-6, 1, n).astype(np.float32)
        rows.append(Sample(rng.integers(5, 250, n), mask, engine, 1.0 - 2 * (i % 2), 0.01))
    return rows


def group(
    model_dir: Path, ranks: int, packing: str = "auto", checkpointing: bool = False, **loss: object
) -> LearnerGroup:
    config = LearnerConfig(
        ranks=ranks, dtype="float32", micro_batch_tokens=128, logprob_chunk=16, packing=packing,
        activation_checkpointing=checkpointing,
    )  # fmt: skip
    loss_config = LossConfig(importance_cap=CAP, **loss)
    return LearnerGroup(model_dir, config, OPTIMIZER, loss_config, ClusterConfig(device="cpu"), 0)


@pytest.fixture(scope="module")
def learners(models, cluster):
    made = {
        "one rank, padded": group(models[True], 1, "padded"),
        "two ranks, packed": group(models[True], 2, "packed", checkpointing=True),
        "untied": group(models[False], 2),
    }
    yield made
    for learner in made.values():
        learner.close()


@pytest.fixture(scope="module")
def trained(learners, tmp_path_factory) -> dict[str, Trained]:
    async def train() -> dict[str, Trained]:
        return {
            name: await _train(learner, tmp_path_factory.mktemp("run"))
            for name, learner in learners.items()
        }

    return asyncio.run(train())


async def _train(learner: LearnerGroup, directory: Path) -> Trained:
    await learner.start()
    stats = [await learner.update([samples(n)]) for n in BATCHES]
    before = await learner.logprobs(IDS)
    (directory / "checkpoint").mkdir()
    await learner.save(directory / "checkpoint")
    await learner.export(directory / "model", "float32")
    await learner.update([samples(5)])
    return Trained(
        stats, before, directory / "checkpoint", await learner.logprobs(IDS), directory / "model"
    )


def plain_torch(model_dir: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """The same three updates: one process, whole logits, one sequence at a time, the formula by hand."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=OPTIMIZER.lr, weight_decay=OPTIMIZER.weight_decay
    )
    stats = []
    for step, count in enumerate(BATCHES, start=1):
        optimizer.zero_grad()
        loss, kl, tokens = torch.zeros(()), 0.0, 0
        for sample in samples(count):
            ids, engine = torch.tensor(sample.ids), torch.tensor(sample.engine_logprobs)
            scores = model(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
            logprobs = scores.gather(-1, ids[1:, None])[3:, 0]
            ratio = (logprobs.detach() - engine[4:]).exp()
            correction = ratio.clamp(max=CAP)
            loss = (
                loss
                - sample.weight
                * sample.advantage
                * (correction * (logprobs - logprobs.detach()).exp()).sum()
            )
            kl += float((ratio - 1 - ratio.log()).sum())
            tokens += len(logprobs)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.gradient_clip)
        optimizer.param_groups[0]["lr"] = OPTIMIZER.lr * min(1.0, step / OPTIMIZER.warmup_steps)
        optimizer.step()
        figures = {
            "loss": loss.item(),
            "gradient_norm": norm.item(),
            "mismatch_kl": kl / tokens,
            "learned_tokens": tokens,
        }
        stats.append(figures)
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}, stats


@pytest.mark.parametrize("name", ["one rank, padded", "two ranks, packed", "untied"])
async def test_learning_equals_plain_torch(trained, models, name):
    weights, stats = plain_torch(models[name != "untied"])
    for ours, theirs in zip(trained[name].stats, stats, strict=True):
        assert theirs["gradient_norm"] > OPTIMIZER.gradient_clip  # clipping is at work
        assert {k: ours[k] for k in theirs} == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    learned = load_file(trained[name].exported / "model.safetensors")
    assert set(weights) - set(learned) <= {"lm_head.weight"}
    for key, tensor in learned.items():
        torch.testing.assert_close(tensor, weights[key], atol=2e-5, rtol=0)


async def test_layout_and_ranks_show_in_the_figures(trained):
    one, two = trained["one rank, padded"].stats, trained["two ranks, packed"].stats
    assert one[0]["learner/padding_share"] > 0 and one[1]["learner/padding_share"] == 0
    assert two[0]["learner/padding_share"] == 0
    assert (
        two[1]["learner/padding_share"] > 0 and two[1]["learner/idle_share"] == 0.5
    )  # one sample on two ranks
    assert [stats["lr"] for stats in one] == pytest.approx([5e-4, 1e-3, 1e-3])
    assert [stats["entropy"] for stats in one] == pytest.approx(
        [stats["entropy"] for stats in two], rel=1e-5
    )


async def goes_on(learner: LearnerGroup, was: Trained) -> None:
    """Whatever the learner has learned before, with this checkpoint it learns what `was` learned."""
    await learner.load(was.checkpoint)
    assert np.allclose(await learner.logprobs(IDS), was.before, atol=1e-5)
    await learner.update([samples(5)])
    assert np.allclose(await learner.logprobs(IDS), was.after, atol=1e-5)
    assert not np.allclose(was.before, was.after, atol=1e-3)


async def test_a_checkpoint_of_one_rank_goes_on_with_two(trained, learners):
    await learners["two ranks, packed"].update([samples(3)])
    await goes_on(learners["two ranks, packed"], trained["one rank, padded"])


async def test_a_fresh_rank_takes_a_checkpoint_of_two_and_several_updates(trained, models):
    learner = group(models[True], 1, clip_low=0.01, clip_high=0.01)
    await learner.start()
    assert not np.allclose(
        await learner.logprobs(IDS), trained["two ranks, packed"].before, atol=1e-3
    )
    await goes_on(learner, trained["two ranks, packed"])
    batch = samples(6)
    stats = await learner.update([batch, batch])
    assert stats["clip_fraction"] > 0  # the second update's ratio is not 1
    learner.close()


async def test_an_exported_model_is_an_ordinary_one(trained):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    was = trained["two ranks, packed"]
    model = AutoModelForCausalLM.from_pretrained(was.exported)
    with torch.no_grad():
        scores = model(torch.tensor([IDS])).logits[0, :-1].log_softmax(-1)
    theirs = scores[torch.arange(len(IDS) - 1), torch.tensor(IDS[1:])]
    assert np.allclose(theirs.numpy(), was.before, atol=1e-5)
    assert AutoTokenizer.from_pretrained(was.exported).chat_template


async def test_what_stops_the_learner(trained, learners):
    learner = learners["one rank, padded"]
    with pytest.raises(ValueError, match="needs samples"):
        await learner.update([])
    bad = [Sample(s.ids, s.mask, s.engine_logprobs, float("nan"), s.weight) for s in samples(2)]
    with pytest.raises(ray.exceptions.RayTaskError, match="gradient norm is nan"):
        await learner.update([bad])
