"""The Python tool as the model sees it: its schema, and the text that a call's outcome becomes.

The same text everywhere: in rollouts, in chat, and in front of other people's endpoints.
"""

from __future__ import annotations

from typing import Any, Literal

from sandbox.outcome import Outcome, Status

ToolMode = Literal["script", "cell"]
TOOL_NAMES: dict[ToolMode, str] = {
    "script": "execute_python_code_with_standard_io",
    "cell": "jupyter_code",
}
_DESCRIPTIONS: dict[ToolMode, str] = {
    "script": "Run Python code with the given standard input and return what it printed.",
    "cell": "Run Python code as the next cell of a notebook and return what it printed and the value of its "
    "last expression. What earlier cells defined is there, except those that a limit or a signal ended.",
}
_PARAMETERS: dict[ToolMode, dict[str, str]] = {
    "script": {"code": "the program", "input": "its standard input"},
    "cell": {"code": "the cell"},
}


def tool_schema(name: str | None = None, mode: ToolMode = "script") -> dict[str, Any]:
    """The function in OpenAI's format; `name` is a setting because published models know other names."""
    parameters = _PARAMETERS[mode]
    return {
        "type": "function",
        "function": {
            "name": name or TOOL_NAMES[mode],
            "description": _DESCRIPTIONS[mode],
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": "string", "description": text} for key, text in parameters.items()
                },
                "required": list(parameters),
            },
        },
    }


def leaves_state(status: Status) -> bool:
    """Whether a cell that ended so is run again before later ones. One that a limit or a signal ended would
    only meet it again, in the place of the cell that is to be run."""
    return status in (Status.OK, Status.ERROR)


def result_text(outcome: Outcome) -> str:
    """What the model reads. Streams that are empty have no line; the time, which is noise, comes last."""
    if outcome.status.infrastructure:
        raise ValueError(
            f"status {outcome.status.value} is the sandbox's own failure and must not reach the model"
        )
    success = outcome.status is Status.OK
    lines = ["Tool call success" if success else "Tool call failure"]
    if not success:
        lines.append(f"reason: {_reason(outcome)}")
    for label, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if stripped := text.rstrip("\n"):
            lines.append(f"{label}: {stripped}")
    lines.append(f"execution time: {outcome.wall_s:.2f} seconds")
    return "\n".join(lines)


def parse_error_text(reason: str) -> str:
    """What the model reads for a call that could not be understood; `reason` says what was expected."""
    return f"Tool call failure\nreason: invalid tool call: {reason}"


def _reason(outcome: Outcome) -> str:
    match outcome.status:
        case Status.ERROR:
            return f"exit code {outcome.exit_code}"
        case Status.TIMEOUT:
            return "timeout, the program ran too long"
        case Status.CPU_LIMIT:
            return "the program used too much CPU time"
        case Status.MEMORY:
            return "out of memory"
        case Status.OUTPUT_LIMIT:
            return "the program wrote too much output"
        case Status.SIGNAL:
            return f"killed by signal {outcome.signal}"
        case _:
            return str(outcome.status.value)
