"""A math-verify process: reads `[label, answer]` as a JSON line, writes a verdict. Killed from outside."""

from __future__ import annotations

import json
import resource
import sys

MEMORY_BYTES = 4 << 30


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from math_verify import parse, verify

    for line in sys.stdin:
        label, answer = json.loads(line)
        # no alarm of its own: the caller's deadline kills the whole process
        gold = parse(f"\\boxed{{{label}}}", parsing_timeout=None)
        given = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)
        if not gold or not given:
            verdict = "unreadable"
        else:
            verdict = "correct" if verify(gold, given, timeout_seconds=None) else "wrong"
        print(verdict, flush=True)


if __name__ == "__main__":
    main()
