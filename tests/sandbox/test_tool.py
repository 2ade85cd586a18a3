"""What the model sees of its tool."""

from __future__ import annotations

import jsonschema
import pytest

from sandbox.outcome import Outcome, Status
from sandbox.tool import parse_error_text, result_text, tool_schema


def test_schema_wants_both_strings() -> None:
    schema = tool_schema("python")
    assert schema["function"]["name"] == "python"
    parameters = schema["function"]["parameters"]
    jsonschema.validate({"code": "1", "input": ""}, parameters)
    for wrong in ({"code": "1"}, {"input": ""}, {"code": 1, "input": ""}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, parameters)


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
