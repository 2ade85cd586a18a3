"""Stage `curate`: SFT conversations, the RL pool and the held-out problems, as three JSONL files.

For the tiny model it also makes the tokenizer, because prompts are counted and tool results are cut in
tokens. Invariant: SFT, pool and held-out problems are disjoint, and no prompt is longer than the budget.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from rl.config import TemplateConfig
from rl.template import Template, user_text
from rl.trajectory import Problem
from sandbox.config import SandboxConfig
from sandbox.errors import UserError
from tasks.base import TINY, load_tokenizer
from tasks.config import CurateConfig, ModelConfig
from tasks.curation import demo, files
from tasks.curation.calls import run_programs
from tasks.curation.dataset import Dataset, Message
from tasks.stage import StageContext


def run(ctx: StageContext) -> None:
    config = ctx.section(CurateConfig, "curate")
    template_config = ctx.section(TemplateConfig, "template")
    dataset = _demo(ctx, config, template_config) if config.source == "demo" else files.read(config)
    template = Template(_tokenizer(ctx, dataset, template_config), template_config)

    limit = int(ctx.setting("tool_response_tokens"))
    dataset = Dataset(
        sft=[_cut_tool_texts(messages, template, limit) for messages in dataset.sft],
        pool=_within_budget(ctx, "pool", dataset.pool, template),
        held_out=_within_budget(ctx, "held-out", dataset.held_out, template),
    )
    dataset.write(ctx.outputs)
    ctx.log(
        f"curate: {len(dataset.sft)} conversations, {len(dataset.pool)} pool problems, "
        f"{len(dataset.held_out)} held-out problems"
    )
    ctx.result(sft=len(dataset.sft), pool=len(dataset.pool), held_out=len(dataset.held_out))


def _demo(ctx: StageContext, config: CurateConfig, template: TemplateConfig) -> Dataset:
    """Problems and conversations from the seed; every program really runs in the sandbox."""
    rng = random.Random(f"curate/{ctx.seed}")
    problems = demo.problems(config.sft_rows + config.pool_problems + config.held_out_problems, rng)
    rng.shuffle(problems)
    held_out = problems[: config.held_out_problems]
    pool = problems[config.held_out_problems : config.held_out_problems + config.pool_problems]
    plans = [
        demo.draft(problem, rng)
        for problem in problems[config.held_out_problems + config.pool_problems :]
    ]

    codes = sorted({step.code for plan in plans for step in plan.steps if step.complete})
    ctx.log(f"curate: running {len(codes)} programs in the sandbox")
    outcomes, isolation = run_programs(
        codes, ctx.section(SandboxConfig, "sandbox"), lambda done: ctx.progress(done, len(codes))
    )
    ctx.progress(len(codes), len(codes))
    ctx.ran_on(isolation=isolation, sandbox_calls=len(codes))
    conversations = [demo.conversation(plan, outcomes, template.tool_name, rng) for plan in plans]
    return Dataset(
        sft=[[_asked(message) for message in messages] for messages in conversations],
        pool=[Problem(p.id, p.text, str(p.answer)) for p in pool],
        held_out=[Problem(p.id, p.text, str(p.answer)) for p in held_out],
    )


def _asked(message: Message) -> Message:
    """A demo message as the template's user turn says it; other roles as they are."""
    return (
        {**message, "content": user_text(message["content"])}
        if message["role"] == "user"
        else message
    )


def _tokenizer(ctx: StageContext, dataset: Dataset, template: TemplateConfig) -> Any:
    model = ctx.section(ModelConfig, "model")
    if model.base == TINY:
        # Imports torch, which nothing else here needs.
        from tasks.tiny import build_tokenizer

        tokenizer = build_tokenizer(_contents(dataset), model.tiny.vocabulary, template)
        tokenizer.save_pretrained(ctx.outputs / "tokenizer")
    return load_tokenizer(model, template, ctx.outputs)


def _contents(dataset: Dataset) -> Iterable[str]:
    for messages in dataset.sft:
        yield from (message["content"] for message in messages if message["content"])


def _cut_tool_texts(messages: list[Message], template: Template, limit: int) -> list[Message]:
    """Tool results as a rollout would append them."""
    return [
        {**message, "content": template.tool_text(message["content"], limit)}
        if message["role"] == "tool"
        else message
        for message in messages
    ]


def _within_budget(
    ctx: StageContext, name: str, problems: list[Problem], template: Template
) -> list[Problem]:
    budget = int(ctx.setting("prompt_tokens"))
    kept = [problem for problem in problems if len(template.prompt_ids(problem.text)) <= budget]
    if len(kept) < len(problems):
        ctx.log(
            f"curate: dropped {len(problems) - len(kept)} {name} problems with prompts over {budget} tokens"
        )
    if not kept:
        raise UserError(
            f"curate: no {name} problem has a prompt of at most rollout.prompt_tokens = {budget} tokens; raise it"
        )
    return kept
