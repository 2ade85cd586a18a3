"""Ids built turn by turn equal the template's ids for the whole conversation; turns are read back strictly."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoTokenizer

from rl.config import TemplateConfig
from rl.template import TAGS, BadCall, Call, Template, defuse, parse_turn, system_text, user_text
from tasks.tiny import build_tokenizer

QWEN = Path(__file__).parents[3] / "shared/models/qwen3-tokenizer"
TOOL = TemplateConfig().tool_name
GOOD_CALL = json.dumps({"name": TOOL, "arguments": {"code": "print(1)", "input": ""}})
CELL_CALL = json.dumps({"name": "jupyter_code", "arguments": {"code": "1 + 1"}})


@cache
def tiny(prefix: str = "") -> Template:
    config = TemplateConfig(generation_prefix=prefix)
    texts = [
        "I write a program. The program gave 42.",
        user_text("Find the sum of 12 and 30."),
        GOOD_CALL,
    ]
    return Template(build_tokenizer(texts * 3, 600, config), config)


@cache
def tiny_cells() -> Template:
    config = TemplateConfig(tool_mode="cell")
    texts = ["I run a cell.", user_text("Find the sum of 12 and 30."), CELL_CALL]
    return Template(build_tokenizer(texts * 3, 600, config), config)


@cache
def qwen() -> Template:
    if not QWEN.is_dir():
        pytest.skip(f"no Qwen3 tokenizer at {QWEN}")
    return Template(AutoTokenizer.from_pretrained(QWEN), TemplateConfig())


# Surrogates are no text; a leading newline is the one thing that a model's turn may not start with, because
# Qwen's tokenizer would merge it with the template's.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
model_text = st.one_of(
    text.map(lambda t: f"<reason>{t}</reason>"),
    text.map(lambda t: f"<reason>{t}</reason><tool_call>{GOOD_CALL}</tool_call>"),
    text.map(lambda t: f"<reason></reason><answer>\\boxed{{{t}}}</answer>"),
)
tool_texts = st.lists(
    st.one_of(text, text.map(lambda t: t + "</tool_response><|im_end|>")), min_size=1, max_size=3
)
conversations = st.lists(st.tuples(model_text, tool_texts), max_size=3)


def assert_same_ids(
    template: Template, problem: str, turns: list[tuple[str, list[str]]], last: str
) -> None:
    encode = template.tokenizer.encode
    prefix = template.config.generation_prefix
    messages = [{"role": "user", "content": user_text(problem)}]
    ids = template.prompt_ids(problem)
    mask = [0] * len(ids)
    for said, results in [*turns, (last, [])]:
        sampled = [*encode(said, add_special_tokens=False), template.stop_id]
        ids += sampled
        mask += [1] * len(sampled)
        messages.append({"role": "assistant", "content": prefix + said})
        if results:
            suffix = template.tool_suffix_ids(results, 30)
            ids += suffix
            mask += [0] * len(suffix)
            messages += [
                {"role": "tool", "content": template.tool_text(result, 30)} for result in results
            ]
    whole = template.tokenizer.apply_chat_template(
        messages,
        chat_template=template.chat_template,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    # The template ends the last turn with a newline that no rollout has.
    assert template.decode(whole["input_ids"][len(ids) :]) == "\n"
    assert whole["input_ids"][: len(ids)] == ids
    assert whole["assistant_masks"][: len(ids)] == mask
    assert not any(whole["assistant_masks"][len(ids) :])


@given(problem=text, turns=conversations, last=model_text)
@settings(max_examples=60, deadline=None)
def test_ids_built_by_turns_are_the_templates(
    problem: str, turns: list[tuple[str, list[str]]], last: str
) -> None:
    assert_same_ids(tiny(), problem, turns, last)


@given(problem=text, turns=conversations, last=model_text)
@settings(max_examples=40, deadline=None)
def test_ids_built_by_turns_are_the_templates_with_cells(
    problem: str, turns: list[tuple[str, list[str]]], last: str
) -> None:
    assert_same_ids(tiny_cells(), problem, turns, last)


def test_the_tool_follows_its_mode() -> None:
    assert TemplateConfig().tool_name == TOOL
    assert TemplateConfig(tool_mode="cell").tool_name == "jupyter_code"
    assert TemplateConfig(tool_mode="cell", tool_name="python").tool_name == "python"
    with pytest.raises(ValidationError, match="tool_mode"):
        TemplateConfig.model_validate({"tool_mode": "jupyter"})
    prompt = tiny_cells().decode(tiny_cells().prompt_ids("Hi"))
    assert '"name": "jupyter_code"' in prompt
    assert '"required": ["code"]' in prompt
    assert "standard input" not in prompt


def test_a_call_is_read_by_its_mode() -> None:
    template = tiny_cells()
    (call,) = template.parse_turn(f"<tool_call>{CELL_CALL}</tool_call>").calls
    assert call == Call("jupyter_code", {"code": "1 + 1"})
    with_input = CELL_CALL.replace('"code"', '"input": "", "code"')
    (bad,) = template.parse_turn(f"<tool_call>{with_input}</tool_call>").calls
    assert bad == BadCall('unknown argument "input"')
    (bad,) = template.parse_turn(f"<tool_call>{GOOD_CALL}</tool_call>").calls
    assert isinstance(bad, BadCall)
    assert "the tool is jupyter_code" in bad.reason


def test_a_structured_call_of_a_cell_is_read_back() -> None:
    call = {
        "type": "function",
        "function": {"name": "jupyter_code", "arguments": {"code": "1 + 1"}},
    }
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<reason>.</reason>", "tool_calls": [call]},
    ]
    rendered = tiny_cells().tokenizer.apply_chat_template(messages, tokenize=False)
    turn = tiny_cells().parse_turn(rendered.rpartition("assistant\n")[2])
    assert turn.calls == [Call("jupyter_code", {"code": "1 + 1"})]


@given(problem=text, turns=conversations, last=model_text)
@settings(max_examples=40, deadline=None)
def test_a_generation_prefix_is_given_and_not_trained(
    problem: str, turns: list[tuple[str, list[str]]], last: str
) -> None:
    template = tiny("<reason>")
    said = [(t.removeprefix("<reason>"), results) for t, results in turns]
    assert_same_ids(template, problem, said, last.removeprefix("<reason>"))


@given(problem=text, turns=conversations, last=model_text)
@settings(max_examples=40, deadline=None)
def test_ids_built_by_turns_are_the_templates_with_qwen(
    problem: str, turns: list[tuple[str, list[str]]], last: str
) -> None:
    assert_same_ids(qwen(), problem, turns, last)


@given(
    results=st.lists(text.map(lambda t: t * 30), min_size=1, max_size=2), limit=st.integers(8, 60)
)
@settings(max_examples=40, deadline=None)
def test_a_tool_result_is_cut_to_its_tokens(results: list[str], limit: int) -> None:
    template = tiny()
    for result in results:
        cut = template.tool_text(result, limit)
        assert len(template.tokenizer.encode(cut, add_special_tokens=False)) <= limit


def test_a_cut_keeps_head_and_tail() -> None:
    cut = tiny().tool_text("start " + "9" * 500 + " end", 20)
    assert cut.startswith("start ")
    assert cut.endswith(" end")
    assert " ... " in cut


@given(
    inside=st.lists(
        st.sampled_from([*TAGS, "<|im_start|>", "<|im_end|>", "<", "|", ">", "a"]), max_size=8
    )
)
def test_no_tag_survives_in_tool_output(inside: list[str]) -> None:
    left = defuse("".join(inside))
    assert not any(tag in left for tag in (*TAGS, "<|"))


def test_tiny_prompts_are_short_and_the_system_text_is_one_token() -> None:
    template = tiny()
    ids = template.prompt_ids("Find the sum of 12 and 30.")
    assert (
        len(template.tokenizer.encode(system_text(template.config), add_special_tokens=False)) == 1
    )
    assert len(ids) < 60
    assert system_text(template.config) in template.decode(ids)


def test_tools_and_system_text_of_a_conversation_replace_the_default() -> None:
    template = tiny()
    given_tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    def render(**kwargs: Any) -> str:
        return template.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)

    assert '"name": "weather"' in render(tools=[given_tool])
    assert TOOL not in render(tools=[given_tool])
    assert "# Tools" not in render(tools=[])
    assert render(tools=[]).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )


def test_structured_tool_calls_are_written_in_the_models_format() -> None:
    call = {
        "type": "function",
        "function": {"name": TOOL, "arguments": {"code": "print(1)", "input": ""}},
    }
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<reason>.</reason>", "tool_calls": [call]},
    ]
    rendered = tiny().tokenizer.apply_chat_template(messages, tokenize=False)
    turn = parse_turn(rendered.rpartition("assistant\n")[2], TOOL)
    assert turn.calls == [Call(TOOL, {"code": "print(1)", "input": ""})]


def test_an_answer_counts_only_without_a_call() -> None:
    answer = "<answer>\\boxed{3}</answer>"
    assert parse_turn(answer, TOOL).answered
    assert not parse_turn("<answer>\\boxed{3}", TOOL).answered
    turn = parse_turn(f"<tool_call>\n{GOOD_CALL}\n</tool_call>{answer}", TOOL)
    assert not turn.answered
    assert turn.calls == [Call(TOOL, {"code": "print(1)", "input": ""})]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 10_000, "not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"name": "x"}', "expected a JSON object"),
        ('{"name": "rm", "arguments": {}}', 'unknown tool "rm"'),
        ('{"name": ["x"], "arguments": {}}', "unknown tool"),
        (json.dumps({"name": TOOL, "arguments": "code"}), "must be an object, not str"),
        (json.dumps({"name": TOOL, "arguments": {"code": "1"}}), "argument input is missing"),
        (json.dumps({"name": TOOL, "arguments": {"code": "1", "input": None}}), "must be a string"),
        (
            json.dumps({"name": TOOL, "arguments": {"code": "1", "input": "", "x": ""}}),
            "unknown argument",
        ),
        (json.dumps({"name": TOOL, "arguments": {"code": "\ud800", "input": ""}}), "surrogate"),
    ],
)
def test_a_call_that_cannot_be_made_says_why(body: str, reason: str) -> None:
    (call,) = parse_turn(f"<tool_call>{body}</tool_call>", TOOL).calls
    assert isinstance(call, BadCall)
    assert reason in call.reason


def test_an_open_call_is_a_bad_call_and_each_call_is_read() -> None:
    calls = parse_turn(f"<tool_call>{GOOD_CALL}</tool_call>, <tool_call>{GOOD_CALL}", TOOL).calls
    assert isinstance(calls[0], Call)
    assert isinstance(calls[1], BadCall)


def test_a_tokenizer_without_the_stop_token_is_refused() -> None:
    tokenizer = build_tokenizer(["some text"], 400, TemplateConfig())
    broken = type(tokenizer)(tokenizer_object=_without_controls())
    with pytest.raises(ValueError, match="no token"):
        Template(broken, TemplateConfig())


def _without_controls() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return bare


@given(text=text)
def test_any_text_can_be_parsed(text: str) -> None:
    parse_turn(text, TOOL)
    parse_turn(f"<tool_call>{text}</tool_call>", TOOL)
