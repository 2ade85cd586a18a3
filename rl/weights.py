"""Weights on their way from the learner to the engines, through shared memory.

Rank 0 writes a version's weights as safetensors into a directory on a memory file system; each engine of
the node reads it, then it is deleted. `lm_head.weight` is always in the file: with tied embeddings vLLM's
CPU engine re-packs its LM head only when it is named, and would go on sampling from the old one otherwise.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "rstar2-weights-"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def channel() -> Path:
    """A directory for this process's weights; the caller removes it. Those of killed processes go too."""
    root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    for stray in root.glob(f"{PREFIX}*"):
        if not Path("/proc", stray.name.removeprefix(PREFIX).split("-")[0]).exists():
            shutil.rmtree(stray, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))


def publish(state: dict[str, Tensor], directory: Path, version: int, dtype: str) -> Path:
    """Write one version; returns the directory that engines load. `state` maps names to whole tensors."""
    tensors = {name: tensor.to(DTYPES[dtype]).contiguous() for name, tensor in state.items()}
    tensors[HEAD] = tensors.get(HEAD, tensors[EMBEDDING]).clone()
    target = directory / f"v{version}"
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    return target


def discard(published: Path) -> None:
    shutil.rmtree(published)
