"""All programs of the suite, by theme."""

from __future__ import annotations

from sandbox.selfcheck.model import Program
from sandbox.selfcheck.programs import (
    cells,
    endings,
    everyday,
    files,
    interpreter,
    kernel,
    limits,
    memory,
    network,
    processes,
    residue,
    streams,
    volume,
)

THEMES: dict[str, tuple[Program, ...]] = {
    "limits": limits.PROGRAMS,
    "memory": memory.PROGRAMS,
    "volume": volume.PROGRAMS,
    "processes": processes.PROGRAMS,
    "kernel": kernel.PROGRAMS,
    "files": files.PROGRAMS,
    "network": network.PROGRAMS,
    "endings": endings.PROGRAMS,
    "interpreter": interpreter.PROGRAMS,
    "streams": streams.PROGRAMS,
    "everyday": everyday.PROGRAMS,
    "cells": cells.PROGRAMS,
    "residue": residue.PROGRAMS,
}
PROGRAMS = tuple(program for programs in THEMES.values() for program in programs)
