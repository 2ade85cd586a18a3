"""The gateway's HTTP side: /run, /batch, /health, /metrics, and code-judge's routes.

A request's connection is its client's word that it still waits: aiohttp cancels the handler when it is lost, and
the handler's calls are ended. A bad request is refused as a whole, naming the field, before anything runs.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field, ValidationError

from sandbox.box import BoxError
from sandbox.calls import Calls, Pending, into
from sandbox.config import Section, split_address
from sandbox.image.server import wire
from sandbox.judge import BatchSubmission, Submission, verdict
from sandbox.outcome import Status
from sandbox.request import BadCall, CallRequest, complaint

MAX_BODY = 64 << 20  # bytes
BACKLOG = 4096
STOP_S = 1.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BatchRequest(Section):
    """Body of /batch."""

    calls: list[CallRequest] = Field(min_length=1)


class HttpServer:
    """Serves `calls` at `address`; `token` None: to whoever can connect."""

    def __init__(self, calls: Calls, address: str, token: str | None) -> None:
        self._calls = calls
        self._address = address
        self._token = token
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        app.add_routes(
            [
                web.post("/run", self._run),
                web.post("/batch", self._batch),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.post("/run/batch", self._judge_batch),
                web.post("/run/long-batch", self._judge_batch),
                web.post("/judge", self._judge),
                web.post("/judge/batch", self._judge_batch),
                web.post("/judge/long-batch", self._judge_batch),
                web.get("/ping", self._ping),
                web.get("/status", self._status),
            ]
        )
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_S
        )

    async def start(self) -> str:
        """Listen; returns HOST:PORT. BoxError if the address cannot be had."""
        host, port = split_address(self._address)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, backlog=BACKLOG).start()
        except OSError as error:
            raise BoxError(f"sandbox.http: cannot listen at {self._address}: {error}") from error
        port = self._runner.addresses[0][1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    # Every request.

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Token first; then each kind of bad request as its status with one line of reason."""
        if self._token is not None and not _same(
            request.headers.get("Authorization", ""), f"Bearer {self._token}"
        ):
            return _error(401, "expected the header Authorization: Bearer TOKEN")
        try:
            return await handler(request)
        except ValidationError as error:
            return _error(422, complaint(error))
        except BadCall as error:
            return _error(422, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is larger than {MAX_BODY} bytes")
        except web.HTTPException as error:
            return _error(error.status, error.text or error.reason)

    async def _body(self, request: web.Request) -> dict[str, Any]:
        """The JSON object in the body. Another content type is refused: a foreign web page can send those."""
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(
                text=f"expected Content-Type application/json, got {request.content_type}"
            )
        raw = await request.read()
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise web.HTTPBadRequest(text=f"expected a JSON object, got {type(body).__name__}")
        return body

    # Ours.

    async def _run(self, request: web.Request) -> web.StreamResponse:
        """One call, or one submission in code-judge's shape: that one has `solution` where ours has `code`."""
        body = await self._body(request)
        if "solution" in body:
            return _json(await self._judged(Submission.model_validate(body)))
        reply = await self._answer(CallRequest.model_validate(body))
        if reply["status"] != Status.OVERLOADED.value:
            return _json(reply)
        seconds = str(math.ceil(reply["retry_after_s"]))
        return _json(reply, status=429, headers={"Retry-After": seconds})

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        """Each outcome as a line as soon as it is there: a slow call does not hold up the fast ones."""
        batch = BatchRequest.model_validate(await self._body(request))
        for call in batch.calls:
            self._calls.check(call)
        lines: list[bytes] = []
        news = asyncio.Event()

        def on_answer(index: int, reply: wire.Message) -> None:
            lines.append(_encode({"index": index, **reply}) + b"\n")
            news.set()

        pending: list[Pending] = []
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        try:
            for index, call in enumerate(batch.calls):
                answer = lambda reply, index=index: on_answer(index, reply)  # noqa: E731
                pending.append(self._calls.submit(call, answer))
            await response.prepare(request)
            written = 0
            while written < len(batch.calls):
                await news.wait()
                news.clear()
                ready, lines[:] = b"".join(lines), []
                written += ready.count(b"\n")
                await response.write(ready)
            await response.write_eof()
        finally:
            for one in pending:
                self._calls.abandon(one)
        return response

    async def _health(self, request: web.Request) -> web.StreamResponse:
        health = self._calls.health()
        return _json(health, status=200 if health["ready"] else 503)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=self._calls.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    # code-judge's.

    async def _judge(self, request: web.Request) -> web.StreamResponse:
        submission = Submission.model_validate(await self._body(request))
        return _json(verdict(await self._judged(submission)))

    async def _judge_batch(self, request: web.Request) -> web.StreamResponse:
        batch = BatchSubmission.model_validate(await self._body(request))
        calls = [submission.call() for submission in batch.submissions]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer(call)) for call in calls]
        pairs = zip(batch.submissions, tasks, strict=True)
        results = [submission.result(task.result()) for submission, task in pairs]
        if request.path.startswith("/judge"):
            results = [verdict(result) for result in results]
        return _json(batch.result(results))

    async def _ping(self, request: web.Request) -> web.StreamResponse:
        return _json("pong")

    async def _status(self, request: web.Request) -> web.StreamResponse:
        health = self._calls.health()
        return _json({"queue": health["queued"], "num_workers": health["slots"]})

    async def _judged(self, submission: Submission) -> dict[str, Any]:
        return submission.result(await self._answer(submission.call()))

    async def _answer(self, call: CallRequest) -> wire.Message:
        """The reply to `call`, which ends with this coroutine."""
        answer: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        pending = self._calls.submit(call, into(answer))
        try:
            return await answer
        finally:
            self._calls.abandon(pending)


def read_token(path: Path) -> str:
    """The token in a file. BoxError names the setting."""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise BoxError(f"sandbox.http_token_file: {error}") from error
    if not token.isascii() or not token.isprintable() or not token:
        raise BoxError(f"sandbox.http_token_file: expected one line of ASCII text in {path}")
    return token


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=_encode(value), status=status, content_type="application/json", headers=headers
    )


def _error(status: int, reason: str) -> web.Response:
    return _json({"error": reason}, status)
