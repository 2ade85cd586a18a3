"""SFT in a real child process: it learns assistant tokens only, and a killed run ends as an unbroken one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl.config import TemplateConfig
from rl.template import Template, user_text
from sandbox.errors import UserError
from tasks.config import SftConfig
from tasks.sft import _arguments, order_by_length
from tasks.spec import StageSpec
from tasks.stage import Stage, read_metrics
from tasks.tiny import build_tokenizer
from tests.tasks import sft_only
from tests.tasks.stages import curate_spec

STEPS = 60
SETTINGS = {
    "max_steps": STEPS,
    "lr": 3e-3,
    "batch": 4,
    "per_device_batch": 2,
    "max_length": 128,
    "dtype": "float32",
    "save_steps": 10,
    "packing": False,
}


def conversations() -> list[list[dict[str, str]]]:
    return [
        [
            {"role": "user", "content": user_text(f"Say {i % 7} twice.")},
            {
                "role": "assistant",
                "content": f"<reason>{'Hm. ' * (i % 5)}</reason><answer>{i % 7}{i % 7}</answer>",
            },
        ]
        for i in range(60)
    ]


def prepare(runs: Path, **settings: Any) -> Stage:
    """A finished curate stage, and the sft stage on top of it."""
    curate = Stage.prepare(runs, curate_spec())
    rows = [json.dumps({"messages": messages}) + "\n" for messages in conversations()]
    (curate.outputs / "sft.jsonl").write_text("".join(rows))
    texts = [message["content"] for messages in conversations() for message in messages]
    build_tokenizer(texts, 450, TemplateConfig()).save_pretrained(curate.outputs / "tokenizer")
    sections = {
        "sft": {**SETTINGS, **settings},
        "model": {"base": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 1, "mlp": 32}},
        "template": {},
    }
    spec = StageSpec(
        stage="sft",
        body=sft_only.BODY,
        version=1,
        seed=0,
        sections=sections,
        numeric=sections,
        inputs={"curate": curate.spec.fingerprint},
    )
    return Stage.prepare(runs, spec)


def start(stage: Stage) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tasks", str(stage.dir)], stdout=subprocess.PIPE, text=True
    )


def finish(stage: Stage) -> dict[str, torch.Tensor]:
    child = start(stage)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 0, output
    return load_file(stage.outputs / "model/model.safetensors")


def stop_at_a_checkpoint(stage: Stage, number: signal.Signals) -> int:
    """Send `number` as soon as there is a new checkpoint; the exit code."""
    before = stage.checkpoint_step()
    child = start(stage)
    while stage.checkpoint_step() in (before, None):
        assert child.poll() is None, child.communicate()[0]
        time.sleep(0.005)
    os.kill(child.pid, number)
    child.communicate(timeout=30)
    return child.returncode


@pytest.mark.slow
def test_a_run_that_was_killed_and_stopped_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = finish(prepare(tmp_path / "a"))
    stage = prepare(tmp_path / "b")
    assert stop_at_a_checkpoint(stage, signal.SIGKILL) == -signal.SIGKILL
    assert stop_at_a_checkpoint(stage, signal.SIGTERM) == 143
    assert stage.manifest() is None
    resumed = finish(stage)

    assert unbroken.keys() == resumed.keys()
    for name, weight in unbroken.items():
        torch.testing.assert_close(resumed[name], weight, rtol=1e-4, atol=1e-5)
    rows = read_metrics(stage.dir / "metrics.jsonl")
    losses = [(row["step"], row["values"]["sft/loss"]) for row in rows]
    assert [step for step, _ in losses] == [1, *range(5, STEPS + 1, 5)]


@pytest.mark.slow
def test_packed_training_learns_and_exports_a_model_that_knows_the_template(tmp_path: Path) -> None:
    stage = prepare(tmp_path, packing=True)
    finish(stage)
    losses = [row["values"]["sft/loss"] for row in read_metrics(stage.dir / "metrics.jsonl")]
    assert losses[-1] < losses[0] / 2
    model_dir = stage.outputs / "model"
    template = Template(AutoTokenizer.from_pretrained(model_dir), TemplateConfig())
    assert template.tokenizer.chat_template == template.chat_template
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    logits = model(torch.tensor([template.prompt_ids("Say 3 twice.")])).logits
    assert template.decode([int(logits[0, -1].argmax())]) == "<reason>"


@given(
    lengths=st.lists(st.integers(1, 300), max_size=400),
    batch=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_ordering_by_length_keeps_every_row(lengths: list[int], batch: int, seed: int) -> None:
    order = order_by_length(lengths, batch, seed)
    assert sorted(order) == list(range(len(lengths)))
    assert order == order_by_length(lengths, batch, seed)


def test_ordering_by_length_saves_padding_and_mixes_lengths() -> None:
    lengths = [(37 * i) % 200 + 1 for i in range(2000)]
    order = order_by_length(lengths, 10, seed=0)

    def padded(rows: list[int]) -> int:
        return sum(
            10 * max(lengths[row] for row in rows[i : i + 10]) for i in range(0, len(rows), 10)
        )

    assert padded(order) < 1.15 * sum(lengths) < padded(list(range(2000)))
    halves = sum(lengths[row] for row in order[:1000]), sum(lengths[row] for row in order[1000:])
    assert max(halves) < 1.1 * min(halves)


def test_a_batch_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sft\.batch \(7\) must be a multiple"):
        _arguments(SftConfig(batch=7, per_device_batch=2), tmp_path, 0)
