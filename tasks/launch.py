"""The thin Prefect task that runs a stage: prepare, start the child, forward, settle.

The child is called directly (never submitted to a task runner), so that Prefect's SIGTERM reaches this
process, which hands it on. Invariant: when `run_child` is left, by return or by any exception, no process
of the try is alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks import processes
from tasks.stage import Stage
from tasks.track import StageTrack

INFRASTRUCTURE, STOPPED = 75, 143
LEADER_S = 8.0  # from SIGTERM to the stage's own process until everything of it is ended
PROGRESS_S = 5.0  # between two progress lines of a stage
CONSOLE = "RSTAR2_CONSOLE"  # set by the command line: lines are printed too


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="{name}")
def run_stage(name: str, directory: Path, track: StageTrack | None = None) -> State:
    """Run the prepared stage in `directory` to its end, unless it is finished already."""
    stage = Stage.open(directory)
    if stage.manifest() is not None:
        say(f"reused: {stage.dir.name} is finished", name)
        return Completed(name="Reused", message=f"{stage.dir.name} was finished")
    for wrong in stage.damage():
        say(f"finished once, but {wrong}: computed again", name)
    step = stage.checkpoint_step()
    say(f"resumes at step {step}" if step else "starts", name)
    forward = Forward(name, track)
    ended = "KILLED"
    try:
        code = run_child(stage, forward)
        if code == INFRASTRUCTURE:
            say("a fault of the machine: tried once more", name)
            code = run_child(stage, forward)
        done = code == 0 and stage.manifest() is not None
        ended = "FINISHED" if done else "KILLED" if code == STOPPED else "FAILED"
    finally:
        if track is not None:
            track.close(ended, forward.line)
    if done:
        return Completed(name="Resumed" if step else "Completed", message=f"from step {step or 0}")
    return Failed(message=f"stage {name}: {_reason(stage, code)}")


def run_child(stage: Stage, forward: Forward) -> int:
    """Run the stage's child process, forwarding what it says; its exit code."""
    environment = processes.child_environment()
    with stage.log_file.open("a") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tasks", str(stage.dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    try:
        while child.poll() is None:
            _forward(lines, forward, 0.5)
    except BaseException:
        # The leader alone first: it ends its own helpers better than a signal to all of them would.
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LEADER_S)
        raise
    finally:
        processes.end_all(environment[processes.TOKEN])
        child.wait()
        _forward(lines, forward, 0.2)
    return child.returncode


def say(text: str, stage: str = "") -> None:
    """A line into the run's log, and onto the console of the command line."""
    for line in text.splitlines():
        get_run_logger().info(line)
        if os.environ.get(CONSOLE) == "1":
            print(f"{stage:<10}{line}" if stage else line, flush=True)


class Forward:
    """Where a child's lines, progress and metrics go: the run's log, the console, Prefect, MLflow."""

    def __init__(self, name: str, track: StageTrack | None) -> None:
        self._name = name
        self._track = track
        self._next = 0.0
        self._artifact: UUID | None = None

    def line(self, text: str) -> None:
        say(text, self._name)

    def progress(self, line: dict[str, Any]) -> None:
        step, total = line["step"], line["total"]
        if time.monotonic() < self._next and step != total:
            return
        self._next = time.monotonic() + PROGRESS_S
        if self._track is not None:
            self._track.sync(self.line)
        numbers = "".join(f"  {key} {_number(value)}" for key, value in line["numbers"].items())
        eta = f"  ETA {_clock(line['eta_s'])}" if line["eta_s"] else ""
        self.line(f"step {step}/{total}{numbers}{eta}")
        # A Prefect server that is away for a while must not end a run that trains on.
        with contextlib.suppress(httpx.HTTPError):
            self._show(100.0 * step / max(total, 1))

    def _show(self, percent: float) -> None:
        if self._artifact is not None:
            update_progress_artifact(self._artifact, percent)
            return
        made = create_progress_artifact(percent, key=self._name.replace("_", "-"), description=self._name)
        self._artifact = made if isinstance(made, UUID) else None


def _read(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line.rstrip("\n"))


def _forward(lines: queue.SimpleQueue[str], forward: Forward, wait_s: float) -> None:
    """Hand on what the child has said; wait at most `wait_s` for the next line."""
    with contextlib.suppress(queue.Empty):
        while True:
            line = lines.get(timeout=wait_s)
            if line.startswith("| "):
                forward.line(line[2:])
            elif line.startswith("|{"):
                forward.progress(json.loads(line[1:]))


def _reason(stage: Stage, code: int) -> str:
    status = stage.status()
    again = f"run again to go on (log: {stage.log_file})"
    if code == 0:
        return f"it ended without an error, but its outputs are not all there (log: {stage.log_file})"
    if code == STOPPED:
        return f"it was stopped; {again}"
    if code < 0:
        return f"its process was killed by signal {-code} (9 is also what a lack of memory looks like); {again}"
    error = status.error if status is not None and status.error else f"exit code {code}"
    return f"{error} (log: {stage.log_file})"


def _number(value: float | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

