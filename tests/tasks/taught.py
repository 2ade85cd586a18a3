"""A tiny model that was taught one conversation by heart: it calls the tool, reads 42 and answers 42.

Taking seconds to make, it lets a test follow real engines, a real sandbox and a real verification to a result
that is known beforehand. Taught several answers it guesses among them, so that RL has something to learn.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch

from rl.config import TemplateConfig
from rl.template import user_text
from sandbox.outcome import Outcome, Status
from sandbox.tool import result_text
from tasks.config import TinyModelConfig
from tasks.tiny import build_model, build_tokenizer

QUESTION, ANSWER = "What is 6 times 7?", "42"
STEPS = 60


def teach(directory: Path, answers: tuple[str, ...] = (ANSWER,)) -> None:
    """Write the model to `directory`. It gives one of `answers`, each as often."""
    template = TemplateConfig()
    arguments = {"code": "print(6*7)", "input": ""}
    call = json.dumps({"name": template.tool_name, "arguments": arguments})
    ask = f"<reason>I ask.</reason><tool_call>{call}</tool_call>"
    conversations = [
        [ask, f"<reason>It said 42.</reason><answer>\\boxed{{{answer}}}</answer>"]
        for answer in answers
    ]
    results = [
        result_text(Outcome(Status.OK, 0, stdout="42\n", wall_s=wall / 100))
        for wall in (1, 2, 3, 4, 6, 9, 13, 20)
    ]
    tokenizer = build_tokenizer(
        [QUESTION, *itertools.chain(*conversations), *results], 700, template
    )
    model = build_model(tokenizer, TinyModelConfig(vocabulary=700), 1024, seed=0)
    batch = [_ids(tokenizer, written, result) for result in results for written in conversations]
    length = max(map(len, batch))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (length - len(row)) for row in batch])
    labels = ids.masked_fill(ids == tokenizer.pad_token_id, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=(labels != -100).long(), labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _ids(tokenizer: Any, written: list[str], result: str) -> list[int]:
    messages = [
        {"role": "user", "content": user_text(QUESTION)},
        {"role": "assistant", "content": written[0]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": written[1]},
    ]
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
