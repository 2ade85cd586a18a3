"""Settings of the RL floor: template, rollouts, selection, loss, engines, learner.

The defaults are the report's recipe (arXiv 2508.20722); `pipeline.yaml` states them again where a reader
looks for them, and profiles change them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sandbox.config import Section, operational
from sandbox.tool import TOOL_NAMES, ToolMode


class TemplateConfig(Section):
    """How a conversation is written; see `rl/template.py`."""

    tool_mode: ToolMode = Field(
        "script", description="script = a program and its input; cell = a notebook's next cell"
    )
    tool_name: str = Field(
        default_factory=lambda settings: TOOL_NAMES[settings["tool_mode"]],
        pattern=r"^\w+$",
        description="name of the Python tool; unset = the usual one of its mode",
    )
    generation_prefix: str = Field("", description="text put before each turn of the model")


class SamplingConfig(Section):
    """How tokens are drawn. RL needs 1, 1, off: otherwise engine log-probabilities are biased."""

    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, description="0 = off")


class RolloutConfig(Section):
    """One conversation's budgets."""

    response_tokens: int = Field(8192, ge=8, description="response budget; tool output counts")
    turns: int = Field(10, ge=1, le=1000, description="assistant turns at most")
    prompt_tokens: int = Field(2048, ge=8, description="longest prompt; longer ones are dropped in curation")
    tool_response_tokens: int = Field(512, ge=8, description="a tool response is cut to this many tokens")
    deadline_s: float = operational(3600.0, gt=0, description="a rollout that takes longer ends as `error`")

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens


class RocConfig(Section):
    """Resample on Correct (section 3.2): sample `rollouts` (2G) a prompt, keep `kept` (G)."""

    rollouts: int = Field(32, ge=2, description="rollouts sampled a prompt (2G)")
    kept: int = Field(16, ge=2, description="rollouts kept a prompt (G)")
    selection: Literal["roc", "top", "all"] = Field(
        "roc", description="roc = the report's weighted draw; top = cleanest first; all = plain GRPO"
    )
    epsilon: float = Field(0.1, gt=0, description="added to the penalty, so that clean traces have a finite weight")

    @model_validator(mode="after")
    def _consistent(self) -> RocConfig:
        if self.selection == "all" and self.kept != self.rollouts:
            raise ValueError(
                f"selection 'all' keeps every rollout: kept ({self.kept}) must equal rollouts ({self.rollouts})"
            )
        if self.kept > self.rollouts:
            raise ValueError(f"kept ({self.kept}) is more than rollouts ({self.rollouts})")
        return self


class OptimizerConfig(Section):
    """AdamW, constant learning rate after a linear warm-up."""

    lr: float = Field(1e-6, gt=0, le=1)
    warmup_steps: int = Field(20, ge=0, description="runs again only after the optimizer was reset")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    weight_decay: float = Field(0.01, ge=0)
    gradient_clip: float = Field(1.0, gt=0)
    state: Literal["fresh", "carry", "reset"] = Field(
        "fresh", description="fresh | carry (the previous stage's state goes on) | reset"
    )


class LossConfig(Section):
    """The clipped policy-gradient objective; no KL and no entropy term."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    updates_per_batch: int = Field(1, ge=1, description="optimizer updates a rollout batch")
    aggregation: Literal["batch", "group"] = Field(
        "batch", description="mean over tokens of the batch or of each group"
    )
    importance_cap: float = Field(2.0, gt=0, description="cap of the learner/engine probability ratio of a token")
    mismatch_limit: float = Field(0.1, gt=0, description="engine/learner KL (nats a token) at which training stops")


class SchedulerConfig(Section):
    """Which rollout starts when, and where; see `rl/scheduler.py`."""

    overbook: float = operational(
        1.2, gt=0, description="expected final KV of an engine's rollouts at most, as a share of its KV cache"
    )
    saturation: int = operational(
        32, ge=0, description="sequences at once that decode needs to be efficient; caches that hold few overbook more"
    )
    off_below: float = operational(
        0.9, ge=0, description="predicted peak, as a share of the KV cache, below which all rollouts start at once"
    )
    prior: float = operational(
        0.5, gt=0, le=1, description="mean length expected in the first step, as a share of the longest possible"
    )


class EngineConfig(Section):
    """vLLM engines."""

    count: int = operational(1, ge=1, description="engines")
    tensor_parallel: int = operational(1, ge=1, description="GPUs an engine")
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    max_num_seqs: int = operational(256, ge=1, description="sequences decoded at once")
    kv_memory_mb: int | None = operational(
        None, ge=1, description="KV cache, MiB; unset = what gpu_memory leaves (on CPU: 1024)"
    )
    block_size: int | None = operational(None, ge=16, description="tokens a KV block; unset = vLLM's default")
    gpu_memory: float = operational(0.85, gt=0, le=1, description="share of a GPU's memory")
    enforce_eager: bool = operational(False, description="no CUDA graphs, no compilation")
    threads: int = operational(1, ge=1, description="CPU threads an engine computes with")
    start_timeout_s: float = operational(900.0, gt=0)
    scheduler: SchedulerConfig = SchedulerConfig()


class LearnerConfig(Section):
    """The learner group."""

    ranks: int = operational(1, ge=1, description="learner processes (FSDP2 ranks)")
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    micro_batch_tokens: int = operational(16_384, ge=16, description="tokens of one forward pass at most")
    logprob_chunk: int = operational(1024, ge=16, description="tokens whose logits exist at once")
    packing: Literal["auto", "packed", "padded"] = operational(
        "auto",
        description="packed = sequences end to end in a row; padded = rows of about equal length; auto = packed "
        "where all of the model's layers are full attention",
    )
    attention: Literal[
        "auto", "varlen", "flash_attention_2", "flash_attention_3", "flex_attention", "sdpa"
    ] = operational("auto", description="auto = varlen (torch's own kernels) where packed, else sdpa")
    activation_checkpointing: bool = operational(True, description="compute each layer twice, keep less memory")
    threads: int = operational(1, ge=1, description="CPU threads a rank computes with")


class ClusterConfig(Section):
    """Where engines, learners and sandboxes run."""

    ray_address: str | None = operational(None, description="unset = a Ray of our own; auto or host:port = attach")
    cpus: int | None = operational(None, ge=1, description="CPUs of our own Ray; unset = all")
    object_store_mb: int = operational(512, ge=80)
    device: Literal["cpu", "cuda"] = "cuda"


class RLConfig(Section):
    """One RL stage."""

    steps: int = Field(300, ge=0, description="RL steps")
    prompts: int = Field(512, ge=1, description="prompts a step")
    rollout: RolloutConfig = RolloutConfig()
    roc: RocConfig = RocConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    checkpoint_every: int = operational(10, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = operational(2, ge=1)
    step_deadline_s: float = operational(7200.0, gt=0, description="a step that takes longer is an error")
