"""Plain subprocesses: one fresh interpreter a call, a few at a time, started by asyncio.

Requests come as lines of JSON over a unix socket, so that starting and reading the processes is this process's
cost and not the benchmark's. A lost connection kills its calls.

    plain_server.py SOCKET PYTHON AT_ONCE
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress

SOCKET, PYTHON, AT_ONCE = sys.argv[1], sys.argv[2], int(sys.argv[3])
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
slots = asyncio.Semaphore(AT_ONCE)


async def call(request: dict[str, object], writer: asyncio.StreamWriter) -> None:
    async with slots:
        process = await asyncio.create_subprocess_exec(
            PYTHON,
            "-c",
            str(request["code"]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        out, err, timed_out = b"", b"", False
        try:
            out, err = await asyncio.wait_for(process.communicate(), float(str(request["limit_s"])))
        except TimeoutError:
            timed_out = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    reply = {"id": request["id"], "timed_out": timed_out, "code": process.returncode}
    texts = {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}
    writer.write(json.dumps({**reply, **texts}).encode() + b"\n")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    calls: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(call(json.loads(line), writer))
        calls.add(task)
        task.add_done_callback(calls.discard)
    for task in calls:
        task.cancel()
    writer.close()


async def main() -> None:
    async with await asyncio.start_unix_server(serve, SOCKET) as server:
        await server.serve_forever()


asyncio.run(main())
