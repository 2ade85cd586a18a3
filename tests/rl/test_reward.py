from __future__ import annotations

import pytest

from rl.reward import Verdict, Verifier, extract, integer


def answer(text: str) -> str:
    return f"<reason>r</reason><answer>{text}</answer>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (answer(r"\boxed{7}"), "7"),
        (answer(r"\boxed{1} or \boxed{2}"), "2"),
        (answer(r"\boxed{\frac{1}{2}}"), r"\frac{1}{2}"),
        (answer(r"\boxed{1}") + answer(r"\boxed{2}"), "2"),
        (answer("7"), None),
        (answer(r"\boxed{7"), None),
        (r"\boxed{7}", None),
        ("<answer>\\boxed{7}", None),
    ],
)
def test_extract(text, expected):
    assert extract(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), ("-7", -7), ("\u22127", -7), ("007", 7), ("1,234", 1234), ("$12$", 12), ("1{,}234", 1234),
     ("1,23", None), ("7.0", None), ("", None), ("7 apples", None), ("9" * 5000, None)],
)  # fmt: skip
def test_integer(text, expected):
    assert integer(text) == expected


async def test_verdicts_with_math_verify_and_a_hostile_answer():
    verifier = Verifier(workers=1, deadline_s=4)
    try:
        cases = [
            (r"\boxed{\frac{1}{2}}", "0.5", Verdict.CORRECT),
            (r"\boxed{7.0}", "7", Verdict.CORRECT),
            (r"\boxed{\frac{1}{3}}", "0.5", Verdict.WRONG),
            (r"\boxed{8}", "7", Verdict.WRONG),
            (r"\boxed{9^{9^{9^{9}}}}", "7", None),
            (r"\boxed{x^2}", "x^2", Verdict.CORRECT),  # the killed worker was replaced
        ]
        for text, label, expected in cases:
            verdict = await verifier.verify(answer(text), label)
            if expected is None:
                assert verdict.reward == 0
            else:
                assert verdict is expected, text
        assert await verifier.verify("no answer", "7") is Verdict.NO_ANSWER
    finally:
        await verifier.close()
