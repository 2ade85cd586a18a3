"""Settings of the stages that are not RL: model, curation, SFT, hard pool, evaluation, tracking."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl.config import RolloutConfig, SamplingConfig
from sandbox.config import Section, operational


class TinyModelConfig(Section):
    """A Qwen3 made from nothing, for the demo (`tasks/tiny.py`)."""

    hidden: int = Field(128, ge=32)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    head_dim: int = Field(32, ge=32, description="vLLM's CPU attention takes 32, 64, 80, 96, 112, 128, …")
    mlp: int = Field(384, ge=32)
    vocabulary: int = Field(1200, ge=400, description="tokens of the byte-level BPE, trained on the SFT traces")


class ModelConfig(Section):
    """The model that SFT starts from."""

    base: str = Field("Qwen/Qwen3-14B-Base", description="Hub id, local directory, or `tiny` (made from nothing)")
    revision: str | None = None
    tiny: TinyModelConfig = TinyModelConfig()


class CurateConfig(Section):
    """Stage `curate`: SFT conversations, the RL pool and the held-out problems."""

    source: Literal["demo", "files"] = Field("demo", description="demo = synthetic problems; files = local JSONL")
    sft_rows: int = Field(6000, ge=1, description="demo: SFT conversations")
    pool_problems: int = Field(2000, ge=1, description="demo: problems of the RL pool")
    held_out_problems: int = Field(200, ge=1, description="demo: held-out problems")
    sft_file: str | None = Field(None, description="files: JSONL with a `messages` column")
    pool_file: str | None = Field(None, description="files: JSONL with `problem` and `answer` columns")
    held_out_file: str | None = Field(None, description="files: JSONL with `problem` and `answer` columns")


class SftConfig(Section):
    """Stage `sft`: non-reasoning SFT by TRL."""

    epochs: float = Field(3.0, gt=0)
    max_steps: int = Field(-1, ge=-1, description="steps at most; -1 = as the epochs give")
    lr: float = Field(5e-6, gt=0, le=1)
    warmup: float = Field(0.04, ge=0, lt=1, description="share of the steps")
    batch: int = Field(128, ge=1, description="sequences (packed) a step, over all devices")
    per_device_batch: int = operational(1, ge=1)
    max_length: int = Field(16_384, ge=16, description="tokens of a packed sequence")
    packing: bool = True
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    weight_decay: float = Field(0.0, ge=0)
    save_steps: int = operational(100, ge=1)
    threads: int = operational(1, ge=1, description="CPU threads")


class HeldOutConfig(Section):
    """The short evaluation at the end of sft and of each RL stage."""

    samples: int = Field(4, ge=1, description="k of avg@k")
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = Field(
        RolloutConfig(response_tokens=12_288, turns=15),
        description="the same budgets after every stage, so that accuracies compare",
    )
    problems: int = Field(200, ge=1, description="held-out problems used, at most")


class HardPoolConfig(Section):
    """Stage `hard_pool`: problems that the rl2 policy does not always solve."""

    samples: int = Field(8, ge=1, description="a problem solved by all of these samples is dropped")


class EvaluateConfig(Section):
    """Stage `evaluate`: benchmarks on the exported model."""

    benchmarks: list[str] = Field(
        default_factory=lambda: ["held_out"], description="`held_out`, or a JSONL file with problem/answer columns"
    )
    samples: int = Field(16, ge=1, description="k of avg@k")
    sampling: SamplingConfig = SamplingConfig(temperature=0.6)
    rollout: RolloutConfig = RolloutConfig(response_tokens=30_000, turns=30)
    cron: str = operational("0 3 * * *", description="schedule of the deployment rstar2-eval/nightly")


class TrackConfig(Section):
    """MLflow."""

    uri: str | None = operational(None, description="MLflow tracking URI; unset = sqlite in the runs directory")
    experiment: str = operational("rstar2")
