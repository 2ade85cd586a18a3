"""Stage `sft`: non-reasoning SFT (section 3.1) by TRL, with loss on the assistant's tokens only.

TRL's trainer renders the conversations through our chat template, whose `{% generation %}` blocks say what
is trained. Invariant: a directory checkpoints/checkpoint-N is complete, because the trainer writes it
elsewhere and it is renamed into place; a run that was killed goes on from the newest one.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import SFTConfig as TrlConfig
from trl import SFTTrainer

from rl.config import TemplateConfig
from sandbox.errors import UserError
from tasks.base import load_model, load_tokenizer
from tasks.config import ModelConfig, SftConfig
from tasks.stage import StageContext

LOG_EVERY = 5  # steps
SORTED_BATCHES = 12
QUICK_SAVE_S = 5.0  # a checkpoint is written on SIGTERM only if the last one took less than this
TINY_POSITIONS = 4096  # tokens that the tiny model's configuration allows


def run(ctx: StageContext) -> None:
    """Train, export outputs/model, and evaluate it on held-out problems."""
    model_dir = ctx.outputs / "model"
    steps = train(ctx, model_dir)
    # vLLM and Ray are slow to import and not needed before.
    from tasks.held_out import evaluate_held_out

    evaluate_held_out(ctx, model_dir, steps)


def train(ctx: StageContext, model_dir: Path) -> int:
    """Train from the newest checkpoint on, write the model to `model_dir`, return the number of steps."""
    model_config = ctx.section(ModelConfig, "model")
    config = ctx.section(SftConfig, "sft")
    template = ctx.section(TemplateConfig, "template")
    curated = ctx.input("curate")
    torch.set_num_threads(config.threads)

    tokenizer = load_tokenizer(model_config, template, curated)
    model = load_model(model_config, tokenizer, config.dtype, TINY_POSITIONS, ctx.seed)
    dataset = load_dataset(
        "json",
        data_files=str(curated / "sft.jsonl"),
        split="train",
        cache_dir=str(ctx.dir / "cache"),
    )
    if not config.packing:
        lengths = [
            len(ids)
            for ids in tokenizer.apply_chat_template(list(dataset["messages"]))["input_ids"]
        ]
        dataset = dataset.select(order_by_length(lengths, config.batch, ctx.seed))

    writing = ctx.checkpoints / "writing"
    shutil.rmtree(writing, ignore_errors=True)
    watcher = Watcher(ctx, writing)
    trainer = SFTTrainer(
        model=model,
        args=_arguments(config, writing, ctx.seed),
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[watcher],
    )
    start = ctx.stage.checkpoint_step()
    began = time.monotonic()
    trainer.train(
        resume_from_checkpoint=str(ctx.checkpoints / f"checkpoint-{start}") if start else None
    )
    if ctx.stopping:
        ctx.stop()
    seconds = time.monotonic() - began
    steps = trainer.state.global_step
    ctx.log(f"sft: {steps - (start or 0)} steps in {seconds:.0f} s, loss {watcher.loss:.3f}")
    ctx.result(
        steps=steps,
        loss=watcher.loss,
        trained_parameters=sum(p.numel() for p in model.parameters()),
    )
    trainer.save_model(str(model_dir))
    tokenizer.save_pretrained(model_dir)
    return steps


def order_by_length(lengths: Sequence[int], batch: int, seed: int) -> list[int]:
    """An order of the rows in which a batch holds similar lengths, so that little of it is padding.

    Rows are sorted only within `SORTED_BATCHES` shuffled batches, and those batches are shuffled again:
    sorting over longer stretches, as the trainer's own grouping does, trains on short rows last and unlearns
    the long ones.
    """
    rng = random.Random(seed)
    rows = list(range(len(lengths)))
    rng.shuffle(rows)
    order: list[int] = []
    for start in range(0, len(rows), SORTED_BATCHES * batch):
        stretch = sorted(rows[start : start + SORTED_BATCHES * batch], key=lambda row: lengths[row])
        batches = [stretch[i : i + batch] for i in range(0, len(stretch), batch)]
        rng.shuffle(batches)
        order += [row for rows_of_batch in batches for row in rows_of_batch]
    return order


def _arguments(config: SftConfig, output_dir: Path, seed: int) -> TrlConfig:
    devices = max(1, torch.cuda.device_count())
    per_step = config.per_device_batch * devices
    if config.batch % per_step:
        raise UserError(
            f"sft.batch ({config.batch}) must be a multiple of sft.per_device_batch ({config.per_device_batch}) "
            f"x {devices} devices"
        )
    return TrlConfig(
        output_dir=str(output_dir),
        num_train_epochs=config.epochs,
        max_steps=config.max_steps,
        learning_rate=config.lr,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup,  # below 1: a share of the steps
        weight_decay=config.weight_decay,
        per_device_train_batch_size=config.per_device_batch,
        gradient_accumulation_steps=config.batch // per_step,
        gradient_checkpointing=torch.cuda.is_available(),
        max_length=config.max_length,
        packing=config.packing,
        train_sampling_strategy="random" if config.packing else "sequential",
        assistant_only_loss=True,
        bf16=config.dtype == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=LOG_EVERY,
        logging_first_step=True,
        save_steps=config.save_steps,
        report_to="none",
        disable_tqdm=True,
        seed=seed,
        data_seed=seed,
    )


class Watcher(TrainerCallback):
    """Tells the stage what the trainer does, puts its checkpoints into place, and stops it on SIGTERM."""

    def __init__(self, ctx: StageContext, writing: Path) -> None:
        self.ctx = ctx
        self.writing = writing
        self.loss = float("nan")
        self._began_save = 0.0
        self._save_s: float | None = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.ctx.stopping:
            control.should_training_stop = True
            control.should_save = self._save_s is not None and self._save_s < QUICK_SAVE_S
        self._began_save = time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or "loss" not in logs or not state.is_world_process_zero:
            return
        self.loss = logs["loss"]
        self.ctx.metrics(state.global_step, {f"sft/{key}": value for key, value in logs.items()})
        self.ctx.progress(state.global_step, state.max_steps, loss=round(self.loss, 4))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._save_s = time.monotonic() - self._began_save
        if not state.is_world_process_zero:
            return
        name = f"checkpoint-{state.global_step}"
        older = [path for path in self.ctx.checkpoints.glob("checkpoint-*") if path.name != name]
        (self.writing / name).rename(self.ctx.checkpoints / name)
        for path in older:
            shutil.rmtree(path)
