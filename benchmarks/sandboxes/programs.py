"""The workload: six kinds of programs, each with one right answer, and the mixes made of them.

Every program carries a number that its answer depends on, so an answer that belongs to another call is a
wrong one. A *false time-out* is one that the program did not earn.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

LIMIT_S = 1.0  # of every call, on every backend: what the infinite loop earns
LOOP_CPU_S = 0.05


class Ending(StrEnum):
    """How a call ended, in words that all backends share."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    FAILED = "failed"  # the backend's doing: lost, refused, broken


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    FALSE_TIMEOUT = "false time-out"
    LOST = "lost"  # no answer, or one that says that the backend failed


@dataclass(frozen=True)
class Answer:
    ending: Ending
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True)
class Program:
    kind: str
    code: str
    ending: Ending
    stdout: str = ""
    stderr: str = ""  # must be in the answer's

    def judge(self, answer: Answer) -> Verdict:
        if answer.ending is Ending.FAILED:
            return Verdict.LOST
        if answer.ending is Ending.TIMEOUT and self.ending is not Ending.TIMEOUT:
            return Verdict.FALSE_TIMEOUT
        same_text = answer.stdout.strip() == self.stdout and self.stderr in answer.stderr
        # What a killed program had said is not part of the comparison: backends differ there by design.
        right = answer.ending is self.ending and (self.ending is Ending.TIMEOUT or same_text)
        return Verdict.RIGHT if right else Verdict.WRONG


def _print(n: int) -> Program:
    return Program("print", f"print(2 + {n})", Ending.OK, str(2 + n))


def _numpy(n: int) -> Program:
    code = (
        "import numpy as np\n"
        f"m = np.array([[2.0, 1.0, {n}.0], [1.0, 3.0, 2.0], [4.0, 1.0, 5.0]])\n"
        "print(round(float(np.linalg.det(m)), 2))"
    )
    return Program("numpy", code, Ending.OK, str(float(29 - 11 * n)))


def _sympy(n: int) -> Program:
    """A cubic with the roots r, r + 1 and r + 3."""
    r = n % 97
    roots = (r, r + 1, r + 3)
    pairs = sum(a * b for a, b in itertools.combinations(roots, 2))
    code = (
        "from sympy import Symbol, solve\n"
        "x = Symbol('x')\n"
        f"print(sorted(solve(x**3 - {sum(roots)}*x**2 + {pairs}*x - {math.prod(roots)}, x)), {n})"
    )
    return Program("sympy", code, Ending.OK, f"{list(roots)} {n}")


def _loop(n: int) -> Program:
    code = (
        "import time\n"
        f"end = time.process_time() + {LOOP_CPU_S}\n"
        "while time.process_time() < end:\n"
        "    pass\n"
        f"print({n})"
    )
    return Program("loop", code, Ending.OK, str(n))


def _syntax(n: int) -> Program:
    return Program("syntax", f"print({n}", Ending.ERROR, stderr="SyntaxError")


def _infinite(n: int) -> Program:
    return Program("infinite", f"n = {n}\nwhile True:\n    n += 1", Ending.TIMEOUT)


MAKERS = {
    "print": _print,
    "numpy": _numpy,
    "sympy": _sympy,
    "loop": _loop,
    "syntax": _syntax,
    "infinite": _infinite,
}
MIXES = {
    "mix": {"print": 40, "numpy": 20, "sympy": 15, "loop": 15, "syntax": 9, "infinite": 1},
    "mix_no_loop": {"print": 40, "numpy": 20, "sympy": 15, "loop": 15, "syntax": 9},
    "soak": {"print": 60, "numpy": 20, "syntax": 20},
}
# What the programs of `mix` burn themselves, whoever runs them: CPU-seconds a call.
MIX_FLOOR_CPU_S = (MIXES["mix"]["loop"] * LOOP_CPU_S + MIXES["mix"]["infinite"] * LIMIT_S) / 100


def programs(workload: str, seed: int = 0) -> Iterator[Program]:
    """Endless programs of one kind, or of a mix: in each block of it every kind has its exact share."""
    numbers = itertools.count(1000 * seed + 1)
    if workload in MAKERS:
        yield from map(MAKERS[workload], numbers)
    block = [kind for kind, share in MIXES[workload].items() for _ in range(share)]
    shuffler = random.Random(seed)
    while True:
        shuffler.shuffle(block)
        for kind in block:
            yield MAKERS[kind](next(numbers))
