"""The global random generators, which would draw the same in every call that a zygote has forked.

scipy and pandas draw from numpy's without naming it, so no look at a program tells whether it will. numpy's own
`seed` copies some hundred pages of the zygote for each call; filling the generator's memory copies one.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from typing import Any

STATE_BYTES = (
    624 * 4
)  # of MT19937; what follows them says that all are used up, and a seed leaves it so


class Generators:
    """Made in the zygote, before anything has been drawn."""

    def __init__(self) -> None:
        self._numpy_state: ctypes.c_void_p | None = None
        module: Any = sys.modules.get("numpy.random")
        if module is not None:
            module.seed(0)
            self._numpy_state = module.get_bit_generator().ctypes.state_address

    def seed(self) -> None:
        """In the child: unlike any other call."""
        random.seed()
        if self._numpy_state is not None:
            ctypes.memmove(self._numpy_state, os.urandom(STATE_BYTES), STATE_BYTES)
