"""The demo's problems and its SFT conversations, made from a seed.

Each family of problems has one right program and a few plausible wrong ones. The conversations are imperfect
on purpose: a model trained on them starts RL with a mixture of right and wrong, clean and failing, short and
long-winded habits, so that RL has something to prefer. The noise sets the starting level, not a short training.

A conversation is planned first (`draft`), its programs run in the sandbox, and then it is written out
(`conversation`) with the texts that the live tool returns. Everything depends on the seed alone: only the
execution times, which a real run cannot repeat, are drawn instead of measured.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from sandbox.outcome import Outcome
from sandbox.tool import parse_error_text, result_text

# Shares of the conversations.
WRONG_PROGRAM = 0.5
FAILS_FIRST = 0.33  # a failing call comes before the program
FAILS_TWICE = 0.2  # of those: two failing calls, one turn more than the first RL stage allows
LONG_WINDED = 0.2  # repeats the problem before the first call
CHECKS = 0.1  # runs the program a second time
NO_ANSWER = 0.05


@dataclass(frozen=True)
class DemoProblem:
    """A problem, its answer, and the programs that one may write for it."""

    id: str
    text: str
    answer: int
    right: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One turn that calls the tool. Without `complete` the call lacks an argument and cannot be parsed."""

    reason: str
    code: str
    complete: bool = True


@dataclass(frozen=True)
class Draft:
    """A planned conversation."""

    problem: DemoProblem
    steps: tuple[Step, ...]
    answers: bool


def _boxes(rng: random.Random) -> DemoProblem:
    a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(11, 99)
    return DemoProblem(
        f"boxes-{a}-{b}-{c}",
        f"A shop has {a} boxes of {b} pens and sells {c} pens. How many are left?",
        a * b - c,
        f"print({a}*{b}-{c})",
        (f"print({a}*({b}-{c}))", f"print({a}*{b}+{c})", f"print({a}+{b}-{c})"),
    )


def _groups(rng: random.Random) -> DemoProblem:
    a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(3, 40)
    return DemoProblem(
        f"groups-{a}-{b}-{c}",
        f"Each of {c} groups has {a} girls and {b} boys. How many children are there?",
        (a + b) * c,
        f"print(({a}+{b})*{c})",
        (f"print({a}+{b}*{c})", f"print({a}*{b}+{c})"),
    )


def _multiples(rng: random.Random) -> DemoProblem:
    a = rng.randint(3, 39)
    n = a * rng.randint(5, 99)  # a multiple itself, so that being off by one shows
    return DemoProblem(
        f"multiples-{a}-{n}",
        f"Find the sum of the multiples of {a} below {n}.",
        sum(range(0, n, a)),
        f"print(sum(range(0,{n},{a})))",
        (
            f"print(sum(range(0,{n}+1,{a})))",
            f"print(len(range(0,{n},{a})))",
            f"print(sum(range({a},{n})))",
        ),
    )


def _power(rng: random.Random) -> DemoProblem:
    a, b, m = rng.randint(2, 99), rng.randint(3, 40), rng.randint(101, 999)
    return DemoProblem(
        f"power-{a}-{b}-{m}",
        f"Find the remainder of {a} to the power {b} when divided by {m}.",
        pow(a, b, m),
        f"print({a}**{b}%{m})",
        (f"print({a}^{b}%{m})", f"print({a}*{b}%{m})"),
    )


def _gcd(rng: random.Random) -> DemoProblem:
    g = rng.randint(2, 60)
    a, b = g * rng.randint(2, 40), g * rng.randint(2, 40)
    return DemoProblem(
        f"gcd-{a}-{b}",
        f"Find the greatest common divisor of {a} and {b}.",
        math.gcd(a, b),
        f"import math\nprint(math.gcd({a},{b}))",
        (f"import math\nprint(math.lcm({a},{b}))", f"print({a}%{b})"),
    )


def _divisors(rng: random.Random) -> DemoProblem:
    n = rng.randint(100, 4999)
    return DemoProblem(
        f"divisors-{n}",
        f"How many positive divisors does {n} have?",
        sum(n % d == 0 for d in range(1, n + 1)),
        f"print(sum({n}%d==0 for d in range(1,{n}+1)))",
        (
            f"print(sum({n}%d==0 for d in range(1,{n})))",
            f"print(sum({n}%d==0 for d in range(2,{n})))",
        ),
    )


FAMILIES: tuple[Callable[[random.Random], DemoProblem], ...] = (
    _boxes,
    _groups,
    _multiples,
    _power,
    _gcd,
    _divisors,
)


def problems(count: int, rng: random.Random) -> list[DemoProblem]:
    """`count` distinct problems, the families in turn."""
    found: dict[str, DemoProblem] = {}
    misses = 0
    while len(found) < count:
        problem = FAMILIES[len(found) % len(FAMILIES)](rng)
        misses = misses + 1 if problem.id in found else 0
        if misses > 1000:
            raise ValueError(
                f"a family has no more than {len(found) // len(FAMILIES)} problems; {count} were asked for"
            )
        found.setdefault(problem.id, problem)
    return list(found.values())


def draft(problem: DemoProblem, rng: random.Random) -> Draft:
    """Plan a conversation about `problem`."""
    code = rng.choice(problem.wrong) if rng.random() < WRONG_PROGRAM else problem.right
    reason = (
        f"The problem says: {problem.text} I write a program."
        if rng.random() < LONG_WINDED
        else "I write a program."
    )
    steps = []
    if rng.random() < FAILS_FIRST:
        for _ in range(2 if rng.random() < FAILS_TWICE else 1):
            steps.append(_failing(reason, code, rng))
            reason = "That failed. I write it again."
    steps.append(Step(reason, code))
    if rng.random() < CHECKS:
        steps.append(Step("I run it again to be sure.", code))
    return Draft(problem, tuple(steps), answers=rng.random() >= NO_ANSWER)


def _failing(reason: str, code: str, rng: random.Random) -> Step:
    """A call that fails: a missing bracket, a wrong name, or a missing argument."""
    kind = rng.random()
    if kind < 0.1:
        return Step(reason, code, complete=False)
    if kind < 0.55:
        return Step(reason, code.removesuffix(")"))
    return Step(reason, code.replace("print(", "Print("))


def conversation(
    plan: Draft, outcomes: dict[str, Outcome], tool_name: str, rng: random.Random
) -> list[dict[str, str]]:
    """The messages of a planned conversation, given what each of its programs came to.

    Tool messages are the tool's whole text; the user message is the bare problem.
    """
    messages = [{"role": "user", "content": plan.problem.text}]
    for step in plan.steps:
        arguments = {"code": step.code, "input": ""} if step.complete else {"code": step.code}
        call = json.dumps({"name": tool_name, "arguments": arguments})
        messages.append(_assistant(f"<reason>{step.reason}</reason><tool_call>{call}</tool_call>"))
        result = (
            result_text(_timed(outcomes[step.code], rng))
            if step.complete
            else parse_error_text("argument input is missing")
        )
        messages.append({"role": "tool", "content": result})
    if not plan.answers:
        return [*messages, _assistant("<reason>I am not sure about this.</reason>")]
    printed = outcomes[plan.steps[-1].code].stdout.strip()
    return [
        *messages,
        _assistant(
            f"<reason>The program gave the result.</reason><answer>\\boxed{{{printed}}}</answer>"
        ),
    ]


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _timed(outcome: Outcome, rng: random.Random) -> Outcome:
    """`outcome` with drawn times, spread as measured ones are."""
    return replace(
        outcome,
        wall_s=0.004 + min(rng.expovariate(100), 0.5),
        cpu_s=0.004,
        queue_s=0.0,
        max_rss_mb=10.0,
    )
