"""What the model sees of its tool."""

from __future__ import annotations

import json

import jsonschema
import pytest

from sandbox.outcome import Outcome, Status
from sandbox.tool import leaves_state, parse_error_text, result_text, tool_schema


def test_schema_wants_both_strings() -> None:
    schema = tool_schema("python")
    assert schema["function"]["name"] == "python"
    parameters = schema["function"]["parameters"]
    jsonschema.validate({"code": "1", "input": ""}, parameters)
    for wrong in ({"code": "1"}, {"input": ""}, {"code": 1, "input": ""}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, parameters)


def test_schema_of_cells_wants_code_only() -> None:
    schema = tool_schema(mode="cell")["function"]
    assert schema["name"] == "jupyter_code"
    jsonschema.validate({"code": "1"}, schema["parameters"])
    for wrong in ({}, {"code": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema["parameters"])
    assert tool_schema("python", "cell")["function"]["name"] == "python"


def test_the_text_of_the_script_schema_is_fixed() -> None:
    """Models are trained on it, and it is one token of the tiny tokenizer."""
    assert json.dumps(tool_schema()) == (
        '{"type": "function", "function": {"name": "execute_python_code_with_standard_io", "description": '
        '"Run Python code with the given standard input and return what it printed.", "parameters": {"type": '
        '"object", "properties": {"code": {"type": "string", "description": "the program"}, "input": {"type": '
        '"string", "description": "its standard input"}}, "required": ["code", "input"]}}}'
    )


@pytest.mark.parametrize("status", list(Status))
def test_a_cell_leaves_its_state_unless_it_was_ended(status: Status) -> None:
    assert leaves_state(status) is (status in ("ok", "error"))


def test_success_has_no_line_for_an_empty_stream() -> None:
    text = result_text(Outcome(Status.OK, exit_code=0, stdout="4\n", wall_s=0.0234))
    assert text == "Tool call success\nstdout: 4\nexecution time: 0.02 seconds"


def test_failure_names_its_reason() -> None:
    text = result_text(Outcome(Status.ERROR, exit_code=1, stderr="ValueError: no\n", wall_s=0.1))
    assert (
        text
        == "Tool call failure\nreason: exit code 1\nstderr: ValueError: no\nexecution time: 0.10 seconds"
    )


@pytest.mark.parametrize("status", [status for status in Status if status.failed])
def test_every_failure_reads_as_one(status: Status) -> None:
    assert result_text(Outcome(status)).startswith("Tool call failure\nreason: ")


@pytest.mark.parametrize("status", [status for status in Status if status.infrastructure])
def test_infrastructure_never_reaches_the_model(status: Status) -> None:
    with pytest.raises(ValueError, match=status.value):
        result_text(Outcome(status))


def test_parse_error_says_what_is_wrong() -> None:
    assert "'code' is missing" in parse_error_text("'code' is missing")
