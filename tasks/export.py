"""The model as others serve it: an ordinary Hugging Face directory that needs nothing of ours.

It holds weights, tokenizer, chat template (with the tool's signature) and a generation_config that says how
the model was evaluated. The weights are linked, not copied, so an export of a large model costs nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.config import SamplingConfig, TemplateConfig
from sandbox.errors import UserError

LEFT_OUT = {
    "training_args.bin"
}  # a pickle of the trainer's settings: of no use to who serves the model


@dataclass(frozen=True)
class ExportFacts:
    """What `check` saw of a model directory that loads."""

    architecture: str
    parameters: int
    dtype: str
    bytes: int


def export(source: Path, target: Path, sampling: SamplingConfig) -> None:
    """Make `target` the model in `source`, to be sampled by `sampling`."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in LEFT_OUT:
            _place(path, target / path.name)
    _write_generation_config(target, sampling)


def check(directory: Path, template: TemplateConfig) -> ExportFacts:
    """Load the model and its tokenizer as a stranger would. Raises `UserError` if something is missing."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, dtype="auto", local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{directory} does not load as a causal language model: {error}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(kind):
            keys = sorted(map(str, info[kind]))[:5]
            raise UserError(f"{directory}: the weights have {kind.replace('_', ' ')}: {keys}")
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise UserError(
            f"{directory}: the tokenizer has {len(tokenizer)} tokens, the model has {rows} embeddings"
        )
    _check_template(directory, tokenizer, template)
    return ExportFacts(
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=str(model.dtype).removeprefix("torch."),
        bytes=sum(path.stat().st_size for path in directory.iterdir() if path.is_file()),
    )


def _check_template(directory: Path, tokenizer: Any, template: TemplateConfig) -> None:
    if not tokenizer.chat_template:
        raise UserError(
            f"{directory} has no chat template (chat_template.jinja): it cannot be asked a question"
        )
    asked = [{"role": "user", "content": "What is 1 + 1?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    if template.tool_name not in prompt:
        raise UserError(
            f"{directory}: its chat template does not offer the tool {template.tool_name}; set template.tool_name "
            "to the name that this model was trained on"
        )


def _write_generation_config(directory: Path, sampling: SamplingConfig) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    path = directory / "generation_config.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    settings |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    settings["do_sample"] = sampling.temperature > 0
    if settings["do_sample"]:
        # top_k is written even when it is off: without it, readers of this file take 50
        settings |= {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
    path.write_text(json.dumps(settings, indent=2) + "\n")


def _place(source: Path, target: Path) -> None:
    """Weights, which nobody edits, are linked where the file system can; the small files are copied."""
    if source.suffix == ".safetensors":
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or one without hard links
    shutil.copy2(source, target)
