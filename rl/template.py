"""The one chat template: how a conversation becomes ids, and how a turn of the model is read back.

Training text (SFT, export) is the Jinja template; a rollout is built turn by turn from `prompt_ids`, the ids
that the engine sampled, and `tool_suffix_ids`. Invariant: both give the same ids, and the template's
`{% generation %}` blocks cover exactly what the model writes, `<|im_end|>` included. The pieces that a rollout
appends are cut out of a rendered conversation, so there is no second copy of the format.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from rl.config import TemplateConfig
from sandbox.tool import ToolMode, tool_schema

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
# Tags that the tiny tokenizer gives an id of their own.
TAGS = tuple(
    tag
    for name in ("reason", "answer", "tools", "tool_call", "tool_response")
    for tag in (f"<{name}>", f"</{name}>")
)
CUT_MARKER = " ... "

_SYSTEM = (
    "A conversation between a user and an assistant. The assistant first reasons inside <reason>...</reason> "
    "and then answers inside <answer>...</answer>."
)
_TOOLS_OPEN = "\n\n# Tools\n\nThe assistant may call these functions while it reasons. Their signatures:\n<tools>\n"
_TOOLS_CLOSE = (
    "\n</tools>\nA call is a JSON object with the function's name and arguments: "
    '<tool_call>{"name": ..., "arguments": {...}}</tool_call>. '
    "Its result comes back inside <tool_response>...</tool_response>."
)
_USER = "Put the answer inside <answer> tags, the final answer in \\boxed{}. "

# Written with explicit '\n' and minus signs only: a newline after a block tag is dropped when a template is
# rendered, and one newline of difference between training and rollout text ruins a model silently.
_TEMPLATE = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = $SYSTEM %}
    {%- set turns = messages %}
{%- endif %}
{%- if tools is not defined or tools is none %}
    {%- set signatures = $TOOL %}
{%- else %}
    {%- set listed = namespace(text='') %}
    {%- for tool in tools %}
        {%- set listed.text = listed.text + ('' if loop.first else '\\n') + (tool | tojson) %}
    {%- endfor %}
    {%- set signatures = listed.text %}
{%- endif %}
{{- '<|im_start|>system\\n' + system }}
{%- if signatures %}
    {{- $TOOLS_OPEN + signatures + $TOOLS_CLOSE }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in turns %}
    {%- set text = message['content'] or '' %}
    {%- if message['role'] == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if $PREFIX and text.startswith($PREFIX) %}
            {{- $PREFIX }}
            {%- set text = text[($PREFIX | length):] %}
        {%- endif %}
        {%- generation %}
            {{- text }}
            {%- for call in message['tool_calls'] or [] %}
                {%- set call = call['function'] if 'function' in call else call %}
                {%- set given = call['arguments'] %}
                {{- '<tool_call>{"name": ' + (call['name'] | tojson) + ', "arguments": ' }}
                {{- given if given is string else (given | tojson) }}
                {{- '}</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message['role'] == 'tool' %}
        {{- '\\n' if loop.previtem is defined and loop.previtem['role'] == 'tool' else '<|im_start|>user\\n' }}
        {{- '<tool_response>\\n' + text + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem['role'] != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + $PREFIX }}
{%- endif %}
"""


@dataclass(frozen=True)
class Call:
    """A well-formed call of the known tool."""

    name: str
    arguments: dict[str, str]


@dataclass(frozen=True)
class BadCall:
    """A call that cannot be made; `reason` goes back to the model."""

    reason: str


@dataclass(frozen=True)
class Turn:
    """What one turn of the model asks for."""

    calls: list[Call | BadCall] = field(default_factory=list)
    answered: bool = False


def chat_template(config: TemplateConfig) -> str:
    """The Jinja template, with the default system text and tool signature written in."""
    values = {
        "$SYSTEM": _SYSTEM,
        "$TOOLS_OPEN": _TOOLS_OPEN,
        "$TOOLS_CLOSE": _TOOLS_CLOSE,
        "$TOOL": _signature(config),
        "$PREFIX": config.generation_prefix,
    }
    # Longest name first: $TOOL is the start of $TOOLS_OPEN.
    names = re.compile("|".join(re.escape(name) for name in sorted(values, key=len, reverse=True)))
    return names.sub(lambda m: json.dumps(values[m[0]]), _TEMPLATE).strip()


def _signature(config: TemplateConfig) -> str:
    return json.dumps(tool_schema(config.tool_name, config.tool_mode))


def system_text(config: TemplateConfig) -> str:
    """The system turn's content, the same in every conversation."""
    return _SYSTEM + _TOOLS_OPEN + _signature(config) + _TOOLS_CLOSE


def user_text(problem: str) -> str:
    """The user turn's content."""
    return _USER + defuse(problem)


def defuse(text: str) -> str:
    """`text` in which no tag of the template is left, so that neither a problem nor a tool's output can open
    or close a turn."""
    return re.sub(r"<(?=\||/?(?:reason|answer|tools|tool_call|tool_response)>)", "< ", text)


class Template:
    """The template for one tokenizer (a transformers fast tokenizer, passed in)."""

    def __init__(self, tokenizer: Any, config: TemplateConfig) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.chat_template = chat_template(config)
        self.stop_id = self._known(IM_END)
        self._known(IM_START)
        self._open, self._between, self._close = self._suffix_pieces()

    def prompt_ids(self, problem: str) -> list[int]:
        """System, tools, the problem, and the start of the model's turn."""
        messages = [{"role": "user", "content": user_text(problem)}]
        return self._encode(self._render(messages, add_generation_prompt=True))

    def tool_suffix_ids(self, results: list[str], limit_tokens: int) -> list[int]:
        """What follows a turn that ended with `<|im_end|>`: the tool's results, each cut to `limit_tokens`,
        and the start of the next turn."""
        texts = [self.tool_text(result, limit_tokens) for result in results]
        return self._encode(self._open + self._between.join(texts) + self._close)

    def tool_text(self, result: str, limit_tokens: int) -> str:
        """The content of a tool message: tags defused, cut to `limit_tokens` with head and tail kept."""
        text = defuse(result)
        ids = self._encode(text)
        if len(ids) <= limit_tokens:
            return text
        # Joined pieces can take more tokens than they had apart, so shrink until they fit.
        for keep in range(limit_tokens - len(self._encode(CUT_MARKER)), 0, -1):
            head, tail = ids[: keep - keep // 2], ids[len(ids) - keep // 2 :]
            text = defuse(self.decode(head) + CUT_MARKER + self.decode(tail))
            if len(self._encode(text)) <= limit_tokens:
                return text
        return ""

    def parse_turn(self, text: str) -> Turn:
        """Read one turn of the model, as `decode` gives it."""
        return parse_turn(text, self.config.tool_name, self.config.tool_mode)

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, special tokens kept and spaces as they are."""
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def _suffix_pieces(self) -> tuple[str, str, str]:
        """The text before, between and after tool results, cut out of a rendered conversation."""
        first, second = "\x01first\x01", "\x01second\x01"
        asked = [
            {"role": "user", "content": "."},
            {"role": "assistant", "content": self.config.generation_prefix},
        ]
        results = [{"role": "tool", "content": first}, {"role": "tool", "content": second}]
        done = self._render(asked, add_generation_prompt=False).removesuffix("\n")
        suffix = self._render(asked + results, add_generation_prompt=True).removeprefix(done)
        before, rest = suffix.split(first)
        between, after = rest.split(second)
        return before, between, after

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _known(self, token: str) -> int:
        ids = self._encode(token)
        if len(ids) != 1:
            raise ValueError(
                f"the tokenizer has no token {token} (it gives {len(ids)} ids); the template needs one"
            )
        return ids[0]


def parse_turn(text: str, tool_name: str, tool_mode: ToolMode = "script") -> Turn:
    """What a turn asks for. An answer counts only when nothing is called."""
    calls = [_parse_call(body, tool_name, tool_mode) for body in _call_bodies(text)]
    closed = re.search(r"<answer>.*?</answer>", text, re.DOTALL) is not None
    return Turn(calls=calls, answered=closed and not calls)


def _call_bodies(text: str) -> list[str | None]:
    """The text of each `<tool_call>`; None for one that is not closed."""
    bodies: list[str | None] = []
    for piece in text.split("<tool_call>")[1:]:
        body, closed, _ = piece.partition("</tool_call>")
        bodies.append(body.strip() if closed else None)
    return bodies


def _parse_call(body: str | None, tool_name: str, tool_mode: ToolMode) -> Call | BadCall:
    if body is None:
        return BadCall("<tool_call> is not closed by </tool_call>")
    try:
        call = json.loads(body)
    except RecursionError:
        return BadCall("the call is not valid JSON: nested too deeply")
    except ValueError as error:  # a number of thousands of digits is one too
        return BadCall(f"the call is not valid JSON: {error}")
    if not isinstance(call, dict) or "name" not in call or "arguments" not in call:
        return BadCall('expected a JSON object {"name": ..., "arguments": {...}}')
    name, arguments = call["name"], call["arguments"]
    if name != tool_name:
        return BadCall(f"unknown tool {json.dumps(name)[:80]}; the tool is {tool_name}")
    if not isinstance(arguments, dict):
        return BadCall(f"arguments must be an object, not {type(arguments).__name__}")
    fault = _schema_fault(arguments, tool_schema(tool_name, tool_mode)["function"]["parameters"])
    return BadCall(fault) if fault else Call(name, arguments)


def _schema_fault(arguments: dict[str, Any], parameters: dict[str, Any]) -> str | None:
    """Why `arguments` do not fit the tool, all of whose parameters are strings."""
    for name in parameters["required"]:
        if name not in arguments:
            return f"argument {name} is missing"
    for name, value in arguments.items():
        if name not in parameters["properties"]:
            return f"unknown argument {json.dumps(name)[:80]}"
        if not isinstance(value, str):
            return f"argument {name} must be a string, not {type(value).__name__}"
        if any("\ud800" <= c <= "\udfff" for c in value):
            return f"argument {name} holds half of a surrogate pair, which is no text"
    return None
