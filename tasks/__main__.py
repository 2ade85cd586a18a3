"""A stage child: `python -m tasks STAGE_DIR` computes one stage, with or without a server about it.

Its exit code is its answer: 0 finished, 2 the user must change something, 75 a fault of the machine (worth
one more try), 143 stopped by SIGTERM, 1 a bug. All output goes to stage.log; lines for people and progress
also go to the original standard output, marked with `|`.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

from sandbox.errors import InfrastructureError, UserError
from tasks import processes
from tasks.signals import Stop, StopSignals
from tasks.stage import Stage, StageContext

DONE, BUG, USER, INFRASTRUCTURE, STOPPED = 0, 1, 2, 75, 143
EXIT_S = 5.0  # at most, from the end of the body to the end of the process
SHOWN_LINES = 15


def main(directory: Path) -> int:
    processes.die_with_launcher()
    signals = StopSignals()
    try:
        stage = Stage.open(directory)
    except UserError as error:
        print(f"| error: {error}", flush=True)
        return USER
    channel = _take_output(stage.log_file)
    try:
        lock = stage.lock(lambda text: _tell(channel, text))
    except Stop:
        return STOPPED
    with lock:
        if stage.manifest() is not None:
            return DONE
        processes.end_leftovers(stage.dir / "token")
        return _run(stage, StageContext(stage, signals, channel))


def _run(stage: Stage, ctx: StageContext) -> int:
    try:
        _body(stage.spec.body)(ctx)
    except Stop:
        ctx.log("stopped; run again to go on from the last checkpoint")
        return _close(ctx, STOPPED, "stopped")
    except UserError as error:
        ctx.log(f"error: {error}")
        return _close(ctx, USER, "failed", str(error))
    except InfrastructureError as error:
        ctx.log(f"machine fault: {error}")
        return _close(ctx, INFRASTRUCTURE, "failed", str(error))
    except Exception as error:
        lines = traceback.format_exc().splitlines()
        print("\n".join(lines), file=sys.stderr, flush=True)
        ctx.log("\n".join(lines[-SHOWN_LINES:]))
        return _close(ctx, BUG, "failed", f"{type(error).__name__}: {error}")
    return _close(ctx, DONE, "completed")


def _close(ctx: StageContext, code: int, status: str, error: str = "") -> int:
    """Settle the stage. The process must end soon, whatever helper threads are still there."""
    deadline = threading.Timer(EXIT_S, os._exit, [code])
    deadline.daemon = True
    deadline.start()
    ctx.close(status, error)
    return code


def _body(place: str) -> Callable[[StageContext], None]:
    module, _, name = place.partition(":")
    body: Callable[[StageContext], None] = getattr(importlib.import_module(module), name)
    return body


def _take_output(log_file: Path) -> IO[str]:
    """Send this process's output, and that of all it starts, to the log; return the original stdout."""
    sys.stdout.flush()
    channel = open(os.dup(1), "w", buffering=1)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return channel


def _tell(channel: IO[str], text: str) -> None:
    print(f"| {text}", flush=True)
    channel.write(f"| {text}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tasks STAGE_DIR")
    sys.exit(main(Path(sys.argv[1])))
