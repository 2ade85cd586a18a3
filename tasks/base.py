"""The model that SFT starts from: `tiny`, a local directory, or a model of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl.config import TemplateConfig
from rl.template import chat_template
from sandbox.errors import UserError
from tasks.config import ModelConfig

TINY = "tiny"


def load_tokenizer(model: ModelConfig, template: TemplateConfig, curated: Path) -> Any:
    """The tokenizer, with our chat template. The tiny model's was made by stage `curate`."""
    from transformers import AutoTokenizer

    if model.base == TINY:
        return AutoTokenizer.from_pretrained(curated / "tokenizer")
    check_base(model.base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.base, revision=model.revision)
    except (OSError, ValueError) as error:
        raise UserError(_not_loaded(model, "tokenizer", error)) from error
    tokenizer.chat_template = chat_template(template)
    # Otherwise generation with the exported model goes on after the end of its turn.
    tokenizer.eos_token = "<|im_end|>"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(model: ModelConfig, tokenizer: Any, dtype: str, positions: int, seed: int) -> Any:
    """The model, in `dtype`. `positions`: tokens that a tiny model can take."""
    import torch
    from transformers import AutoModelForCausalLM

    if model.base == TINY:
        from tasks.tiny import build_model

        return build_model(tokenizer, model.tiny, positions, seed).to(getattr(torch, dtype))
    check_base(model.base)
    try:
        return AutoModelForCausalLM.from_pretrained(
            model.base,
            revision=model.revision,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
        )
    except (OSError, ValueError) as error:
        raise UserError(_not_loaded(model, "weights", error)) from error


def check_base(base: str) -> None:
    """Raise if `base` is a path at which there is no model. Hub ids are not looked up."""
    path = Path(base).expanduser()
    is_hub_id = base.count("/") <= 1 and not base.startswith((".", "/", "~")) and not path.exists()
    if base == TINY or is_hub_id:
        return
    if not path.is_dir():
        raise UserError(
            f"model.base: there is no directory {base}; give a model directory, a Hub id, or `tiny`"
        )
    if not (path / "config.json").is_file():
        raise UserError(
            f"model.base: {base} holds no model (no config.json); give the directory that has one"
        )


def _not_loaded(model: ModelConfig, part: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0]
    where = model.base + (f" at revision {model.revision}" if model.revision else "")
    return (
        f"model.base: the {part} of {where} could not be loaded: {first} "
        "(a Hub id needs the network or a filled cache; a local model is given by its directory)"
    )
