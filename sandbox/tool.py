"""The Python tool as the model sees it: its schema, and the text of a result.

The same for rollouts, training data, chat and endpoints, so that a model meets one format only.
"""

from __future__ import annotations

from typing import Any

from sandbox.outcome import Outcome, Status


def tool_schema(name: str) -> dict[str, Any]:
    """The function signature of the tool in OpenAI's format."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "Run Python code with the given standard input and return what it printed.",
            "parameters": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "description": "the program"},
                    "input": {"type": "string", "description": "its standard input"},
                },
                "required": ["code", "input"],
            },
        },
    }


def result_text(outcome: Outcome) -> str:
    """What the model reads after a call."""
    head = "success" if outcome.status is Status.OK else outcome.status.value
    parts = [f"Tool call {head}"]
    if outcome.stdout:
        parts.append(f"stdout: {outcome.stdout.rstrip()}")
    if outcome.stderr:
        parts.append(f"stderr: {outcome.stderr.rstrip()}")
    parts.append(f"execution time: {outcome.wall_s:.2f}s")
    return "\n".join(parts)


def parse_error_text(reason: str) -> str:
    """What the model reads after a call that could not be made."""
    return f"Tool call parse error\n{reason}"
