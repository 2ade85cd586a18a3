from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rl.attention import register
from rl.batch import collate
from rl.config import LossConfig
from rl.logprobs import LogProbs
from rl.loss import policy_loss
from rl.samples import Sample, token_weights

VOCABULARY = 64


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
    )  # fmt: skip
    register()
    return Qwen3ForCausalLM(config)


@pytest.fixture
def samples() -> list[Sample]:
    """Four rollouts of different length with a tool response (mask 0) inside."""
    rng = np.random.default_rng(0)
    rows = []
    for prompt, response in [(5, 20), (5, 9), (3, 14), (3, 6)]:
        mask = np.ones(response, dtype=np.int8)
        mask[2:4] = 0
        n = prompt + response
        rows.append(
            (
                rng.integers(0, VOCABULARY, n),
                np.concatenate([np.zeros(prompt, dtype=np.int8), mask]),
            )
        )
    weight = token_weights([int(mask.sum()) for _, mask in rows], [0, 0, 1, 1], "batch")
    return [
        Sample(ids, mask, (-3.5 + 0.3 * rng.normal(size=len(ids))).astype(np.float32), advantage, w)
        for (ids, mask), advantage, w in zip(rows, [1.2, -0.7, 0.4, -0.9], weight, strict=True)
    ]


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def our_loss(
    model, samples, old_shift: float, config: LossConfig, packed: bool = False
) -> torch.Tensor:
    batch = collate(samples, packed)
    model.set_attn_implementation("varlen" if packed else "sdpa")
    logprobs, _ = LogProbs(model, 7)(batch)
    loss, _ = policy_loss(logprobs, logprobs.detach() + old_shift * batch.mask, batch, config)
    return loss


@pytest.mark.parametrize("old_shift", [0.0, 0.25, -0.4])
def test_loss_and_gradients_equal_trl(model, samples, old_shift, tmp_path):
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    config = LossConfig()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, "0")),
        pad_token="0", eos_token="1",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", loss_type="bnpo", beta=0.0,
            epsilon=config.clip_low, epsilon_high=config.clip_high, num_generations=2,
            per_device_train_batch_size=4, gradient_accumulation_steps=1, temperature=1.0,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["2 3"] * 4}),
        processing_class=tokenizer,
    )  # fmt: skip
    batch = collate(samples, packed=False)
    attention = torch.tensor(
        [[t < len(s.ids) for t in range(batch.longest)] for s in samples]
    ).long()
    model.train()
    with torch.no_grad():
        logprobs = LogProbs(model, 1000)(batch)[0]
    old = logprobs + old_shift * batch.mask
    ratio = ((old - batch.engine_logprobs) * batch.mask).exp().clamp(max=config.importance_cap)
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    trainer.current_gradient_accumulation_steps = 1
    theirs = trainer._compute_loss(
        model,
        {
            "prompt_ids": batch.ids[:, :1],
            "prompt_mask": attention[:, :1],
            "completion_ids": batch.ids[:, 1:],
            "completion_mask": attention[:, 1:],
            "tool_mask": batch.mask[:, 1:],
            "advantages": torch.tensor([s.advantage for s in samples]),
            "old_per_token_logps": old[:, 1:],
            "importance_sampling_ratio": ratio[:, 1:],
        },
    )
    theirs.backward()
    their_gradients = gradients(model)
    model.zero_grad()
    assert their_gradients.abs().max() > 1e-3
    for packed in (False, True):
        ours = our_loss(model, samples, old_shift, config, packed)
        ours.backward()
        assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
        torch.testing.assert_close(gradients(model), their_gradients, atol=1e-5, rtol=0)
        model.zero_grad()


@pytest.mark.parametrize("packed", [False, True])
def test_micro_batches_add_up_to_the_whole_batch(model, samples, packed):
    config = LossConfig()
    our_loss(model, samples, 0.0, config).backward()
    whole = gradients(model)
    model.zero_grad()
    for part in (samples[:1], [], samples[1:]):
        our_loss(model, part, 0.0, config, packed).backward()
    torch.testing.assert_close(gradients(model), whole, atol=1e-6, rtol=0)


def test_tool_tokens_and_prompt_give_no_gradient(model, samples):
    muted = [
        Sample(s.ids, np.zeros_like(s.mask), s.engine_logprobs, s.advantage, s.weight)
        for s in samples
    ]
    our_loss(model, muted, 0.0, LossConfig()).backward()
    assert gradients(model).abs().max() == 0


def test_one_token_by_hand():
    """Ratio 1.5 is clipped at 1.28 for a positive advantage; the engine gave the old token probability 0.1,
    the learner 0.3: a correction of 3, cut to 2."""
    sample = Sample(
        np.array([3, 4]), np.array([0, 1]), np.log([1, 0.1]), advantage=0.7, weight=0.25
    )
    old = torch.tensor([[0.0, np.log(0.3)]])
    new = torch.tensor([[0.0, np.log(0.3 * 1.5)]])
    batch = collate([sample], packed=False)
    loss, sums = policy_loss(new, old, batch, LossConfig(importance_cap=2.0))
    assert loss.item() == pytest.approx(-1.28 * 0.7 * 2 * 0.25)
    assert sums["mismatch_kl"].item() == pytest.approx(3 - 1 - np.log(3), rel=1e-5)
    assert [int(sums[name]) for name in ("tokens", "clipped", "importance_capped")] == [1, 1, 1]
    uncapped, _ = policy_loss(new, old, batch, LossConfig(importance_cap=5.0))
    assert uncapped.item() == pytest.approx(-1.28 * 0.7 * 3 * 0.25)


def test_importance_ratio_is_capped_and_carries_no_gradient(model, samples):
    far = [Sample(s.ids, s.mask, s.engine_logprobs - 50, s.advantage, s.weight) for s in samples]
    cap = LossConfig(importance_cap=2.0)
    our_loss(model, far, 0.0, cap).backward()
    capped = gradients(model)
    model.zero_grad()
    our_loss(model, far, 0.0, LossConfig(importance_cap=1.0)).backward()
    torch.testing.assert_close(capped, 2 * gradients(model), atol=1e-6, rtol=1e-4)
