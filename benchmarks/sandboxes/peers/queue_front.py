"""Stand-in for code-judge's front: takes submissions over HTTP, puts them into Redis, waits there for results.

It follows how code-judge (github.com/0xWJ/code-judge) works, not its code: a sorted set ordered by arrival is the
work queue, each submission has a list of its own for its result, and a batch is answered when its last result
is there. Addresses are the same, so one client speaks to both.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import fastapi
import pydantic
import redis.asyncio
from queue_keys import RESULT, WORK

RESULT_WAIT_S = 600

store = redis.asyncio.Redis.from_url(os.environ["REDIS_URI"], socket_timeout=RESULT_WAIT_S + 30)
app = fastapi.FastAPI()


class Submission(pydantic.BaseModel):
    type: str
    solution: str
    input: str | None = None


class Batch(pydantic.BaseModel):
    type: str = "batch"
    submissions: list[Submission]


class Result(pydantic.BaseModel):
    success: bool
    run_success: bool
    cost: float
    stdout: str | None = None
    stderr: str | None = None
    reason: str = ""


@app.get("/ping")
def ping() -> str:
    return "pong"


@app.get("/status")
async def status() -> dict[str, int]:
    return {"queue": await store.zcard(WORK)}


@app.post("/run")
async def run(submission: Submission) -> Result:
    key = await _submit([submission])
    return await _result(key[0])


@app.post("/run/long-batch")
async def run_long_batch(batch: Batch) -> dict[str, Any]:
    keys = await _submit(batch.submissions)
    return {"results": [await _result(key) for key in keys]}


async def _submit(submissions: list[Submission]) -> list[str]:
    """Queue them; the lists in which their results will be."""
    payloads, keys = {}, []
    for submission in submissions:
        number = str(uuid.uuid4())
        now = time.time()
        work = {"work_id": number, "timestamp": now, "submission": submission.model_dump()}
        payloads[pydantic.TypeAdapter(dict).dump_json(work)] = now
        keys.append(RESULT + number)
    await store.zadd(WORK, payloads)
    return keys


async def _result(key: str) -> Result:
    popped = await store.blpop([key], timeout=RESULT_WAIT_S)
    await store.delete(key)
    if popped is None:
        return Result(success=False, run_success=False, cost=0.0, reason="queue_timeout")
    return Result.model_validate_json(popped[1])
