"""What each tier of zygotes has imported, and which tier a program should be forked from.

A fork costs what its zygote holds: the more is imported, the dearer. So programs go by their import statements
to the smallest tier that has everything they name. A wrong guess costs an import, never a result.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

# Pure Python or nearly so: each shared library costs every fork some microseconds.
STD = """
    bisect cmath collections contextlib copy dataclasses datetime decimal enum fractions functools heapq io
    itertools json math numbers operator random re statistics string textwrap threading time traceback typing
"""
NUM = "numpy numpy.random"
SYM = "sympy mpmath"
FULL = """
    scipy.optimize scipy.special scipy.integrate scipy.linalg scipy.stats networkx pandas
    asyncio concurrent.futures multiprocessing urllib.request
"""
# Starts a thread when it is imported, as pandas does where it is installed.
LEFT_OUT = "pyarrow"
TIERS = {
    "std": STD,
    "num": STD + NUM,
    "sym": STD + NUM + " " + SYM,
    "full": STD + NUM + " " + SYM + FULL,
}
RANKS = {
    "numpy": 1,
    **dict.fromkeys(["sympy", "mpmath"], 2),
    **dict.fromkeys(["scipy", "networkx", "pandas"], 3),
    **dict.fromkeys(["asyncio", "http", "urllib", "multiprocessing"], 3),
}
STATEMENT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([\w., \t]+))", re.MULTILINE
)
NAME = re.compile(r"[\w.]+")

WARM_NUM = """
import numpy
numpy.linalg.det(numpy.eye(2)); numpy.arange(6).reshape(2, 3).sum(axis=0); str(numpy.ones(2))
"""
WARM_SYM = """
import sympy
x, y = sympy.symbols("x y")
sympy.solve(x**3 - 6*x**2 + 11*x - 6, x); sympy.factorint(360360); sympy.integrate(x * sympy.sin(x), x)
sympy.simplify((x**2 - 1) / (x - 1)); sympy.solve([x + y - 3, x - y - 1], [x, y]); sympy.factor(x**2 - 1)
str(sympy.Rational(1, 3) + sympy.sqrt(2) * sympy.pi); sympy.Matrix([[1, 2], [3, 4]]).det(); sympy.N(sympy.pi, 30)
"""
WARM = {"std": "", "num": WARM_NUM, "sym": WARM_NUM + WARM_SYM, "full": WARM_NUM + WARM_SYM}


def tier_for(code: str) -> str:
    """The smallest tier with what `code` imports."""
    if "import" not in code:
        return "std"
    rank = 0
    for module, modules in STATEMENT.findall(code):
        for name in NAME.findall(module or modules):
            rank = max(rank, RANKS.get(name.partition(".")[0], 0))
    return list(TIERS)[rank]


def load(tier: str) -> list[str]:
    """Import what the tier has, and use it once so that no call pays for first uses. The names not installed."""
    missing = []
    modules: dict[str, Any] = sys.modules
    modules[LEFT_OUT] = None
    for name in TIERS[tier].split():
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if not missing:
        exec(WARM[tier], {})
    del modules[LEFT_OUT]
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(
            f"importing {TIERS[tier].split()} started {threads - 1} threads: a fork copies none of them, "
            "and what waits for one in a call waits for ever"
        )
    return missing
