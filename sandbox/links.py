"""Connections from a client to one gateway: frames over a socket, or HTTP.

Many requests may be outstanding on a link. Whoever stops waiting (is cancelled) ends the call at the gateway. A
link that broke raises OSError for each request that it carried, and connects again at the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from sandbox.errors import UserError
from sandbox.image.server import wire
from sandbox.outcome import Status

CONNECT_S = 5.0
CONNECTIONS = 512  # a link over HTTP needs one for each call at a time; further calls wait for one
# A machine that lost its power says no goodbye: a silent peer is asked, and given up within half a minute.
KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


class BadRequest(ValueError):
    """The gateway understood the request and refuses it; asking again does not help."""


@dataclass(frozen=True)
class Endpoint:
    """Where a gateway is: the path of its unix socket, or its http(s) address with its token, if it has one."""

    address: str
    token: str | None = field(default=None, repr=False)
    slots: int = 1  # its share among several

    @property
    def near(self) -> bool:
        """On this machine."""
        return "://" not in self.address


class Link(Protocol):
    """One gateway, in one event loop."""

    async def request(self, message: wire.Message) -> wire.Message:
        """The reply to `message`. OSError: lost, or nobody there; BadRequest: refused for good."""

    async def close(self) -> None:
        """Calls still outstanding come back as cancelled."""


def connect(endpoint: Endpoint) -> Link:
    """A link to `endpoint`; it connects when it is first used."""
    return FrameLink(endpoint.address) if endpoint.near else HttpLink(endpoint)


class FrameLink:
    """One connection for all calls, which are told apart by a number."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[wire.Message]] = {}
        self._opening = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None

    async def request(self, message: wire.Message) -> wire.Message:
        async with self._opening:
            if self._writer is None:
                await self._open()
        writer = self._writer
        if writer is None:
            raise ConnectionError("connection lost")
        number = next(self._numbers)
        future: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            writer.write(wire.encode({**message, "id": number}))
            await writer.drain()
            reply = await future
        finally:
            self._waiting.pop(number, None)
            if not future.done() or future.cancelled():
                writer.write(wire.encode({"op": "cancel", "id": number}))
        del reply["id"]
        if "error" in reply:
            raise BadRequest(reply["error"])
        return reply

    async def close(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_result({"id": 0, **_CLOSED})
        if self._reader_task is not None:
            self._reader_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader_task
        if self._writer is not None:
            self._writer.close()

    async def _open(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self._path)
        self._writer = writer
        self._reader_task = asyncio.create_task(self._read(reader, writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand each reply to its waiter; when the connection ends, fail whoever still waits."""
        reason = "connection closed by the gateway"
        try:
            while True:
                header = await reader.readexactly(wire.HEADER.size)
                reply = wire.decode(await reader.readexactly(wire.body_length(header)))
                future = self._waiting.get(reply["id"])
                if future is not None and not future.done():
                    future.set_result(reply)
        except (asyncio.IncompleteReadError, OSError, wire.WireError) as error:
            reason = f"{reason} ({error})"
        finally:
            writer.close()
            self._writer = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError(reason))


class HttpLink:
    """A pool of connections, one for each call at a time: dropping the request ends the call."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.address.rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise ValueError(
                f"a sandbox's endpoint is the path of a socket or http://HOST:PORT, got {self._url!r}"
            )
        self._headers = {}
        if endpoint.token is not None:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def request(self, message: wire.Message) -> wire.Message:
        body = {name: value for name, value in message.items() if name != "op"}
        path = "/health" if message["op"] == "health" else "/run"
        try:
            if path == "/health":
                request = self._open().get(self._url + path)
            else:
                request = self._open().post(self._url + path, json=body)
            async with request as response:
                return self._reply(path, response.status, await response.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            if self._closed:
                return dict(_CLOSED)
            raise ConnectionError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, socket_factory=_lively_socket)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=self._headers
            )
        return self._session

    def _reply(self, path: str, status: int, reply: Any) -> wire.Message:
        if status == 200 or status == 429 or (path == "/health" and status == 503):
            return dict(reply)
        reason = f"{self._url}{path} answered {status}: {reply.get('error', reply)}"
        if status == 401:
            raise UserError(f"the sandbox refused the token: {reason}")
        if status < 500:
            raise BadRequest(reason)
        raise ConnectionError(reason)


_CLOSED: wire.Message = {"status": Status.CANCELLED.value, "stderr": "client closed"}


def _lively_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
