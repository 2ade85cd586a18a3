"""The conformance suite that every isolation level must pass: programs, what must hold, a runner, a table.

`python -m sandbox selfcheck` runs it for users, `tests/sandbox/test_selfcheck.py` for us. A program is data;
beside each run two innocent ones with known answers, because what a hostile program does to *others* is the
half of isolation that its own outcome does not show.
"""
