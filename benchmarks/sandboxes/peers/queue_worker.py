"""Stand-in for code-judge's workers: each takes a submission from Redis and runs it in a fresh interpreter.

As there: a temporary directory a call, the program written to a file behind a preamble that sets an alarm and
rlimits, a process group of its own that is killed afterwards, and the result pushed back to Redis.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import redis
from queue_keys import ALIVE, RESULT, WORK

LIMIT_S = int(os.environ["LIMIT_S"])
MEMORY_BYTES = int(os.environ["MEMORY_MB"]) << 20
PYTHON = os.environ["PROGRAM_PYTHON"]
WORKERS = int(os.environ["WORKERS"])
KEPT_CHARACTERS = 1000
END_MARK = "@@END"

PREAMBLE = f"""
def _prepare():
    import os, resource, signal, time
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    def stop(*_):
        print("time limit", flush=True)
        os.killpg(0, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, stop)
    signal.alarm({LIMIT_S})
    for which, most in ((resource.RLIMIT_CPU, {LIMIT_S}), (resource.RLIMIT_AS, {MEMORY_BYTES})):
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
    return time.perf_counter()
_started_at = _prepare()
""".strip()
EPILOGUE = f"""
def _finish():
    import time
    print("{END_MARK}")
    print(time.perf_counter() - _started_at, flush=True)
_finish()
""".strip()


def run(solution: str, stdin: str | None) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "source.py")
        source.write_text(f"{PREAMBLE}\n{solution}\n{EPILOGUE}")
        started_at = time.perf_counter()
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [PYTHON, str(source)],
            cwd=directory,
            stdin=pipe if stdin else None,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(
                    stdin.encode() if stdin else None, timeout=LIMIT_S + 1
                )
            except subprocess.TimeoutExpired:
                out, err = b"", b""
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        cost = time.perf_counter() - started_at
    success = process.returncode == 0
    stdout, _, spent = out.decode().partition(END_MARK)
    return {
        "success": success,
        "run_success": success,
        "cost": float(spent) if spent.strip() else cost,
        "stdout": stdout[:KEPT_CHARACTERS],
        "stderr": err.decode()[:KEPT_CHARACTERS],
        "reason": "worker_timeout" if not success and cost >= LIMIT_S else "",
    }


def work() -> None:
    store = redis.Redis.from_url(os.environ["REDIS_URI"])
    name = ALIVE + str(uuid.uuid4())
    while True:
        store.set(name, 1, ex=120)
        popped = store.bzpopmin([WORK], timeout=30)
        if popped is None:
            continue
        item = json.loads(popped[1])
        result = run(item["submission"]["solution"], item["submission"]["input"])
        key = RESULT + item["work_id"]
        store.rpush(key, json.dumps(result))
        store.expire(key, 60)


if __name__ == "__main__":
    processes = [multiprocessing.Process(target=work) for _ in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
