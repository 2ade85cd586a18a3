"""The dispatcher's connections to the gateway. Writes never block; what a peer has not read yet is held for it."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from . import wire
from .loop import Loop

READ_SIZE = 1 << 18


class Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = wire.Decoder()
        self.outgoing = bytearray()
        self.blocked = False  # `outgoing` waits until the socket takes more
        self.closed = False


class Peers:
    """Calls `on_connect(peer)`, `on_message(peer, message)` and `on_gone(peer)`."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        on_connect: Callable[[Peer], None],
        on_message: Callable[[Peer, wire.Message], None],
        on_gone: Callable[[Peer], None],
    ) -> None:
        self._loop = loop
        self._on_connect = on_connect
        self._on_message = on_message
        self._on_gone = on_gone
        self._peers: list[Peer] = []
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        # Who may reach it is decided by the directories around it, on both sides.
        os.chmod(path, 0o666)
        self._listener.listen(8)
        loop.watch(self._listener.fileno(), self._accept)

    def send_all(self, message: wire.Message) -> None:
        for peer in list(self._peers):
            self.send(peer, message)

    def send(self, peer: Peer, message: wire.Message) -> None:
        if peer.closed:
            return
        idle = not peer.outgoing
        peer.outgoing += wire.encode(message)
        if idle:
            self._flush(peer)

    def _accept(self, _: int) -> None:
        sock, _address = self._listener.accept()
        sock.setblocking(False)
        peer = Peer(sock)
        self._peers.append(peer)
        self._loop.watch(sock.fileno(), lambda events: self._on_events(peer, events))
        self._on_connect(peer)

    def _on_events(self, peer: Peer, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(peer)
        if peer.closed or not events & ~select.EPOLLOUT:
            return
        try:
            data = peer.sock.recv(READ_SIZE)
            messages = peer.decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError, wire.WireError) as error:
            print(f"connection dropped: {error}", file=sys.stderr, flush=True)
            data, messages = b"", []
        for message in messages:
            self._on_message(peer, message)
        if not data:
            self._drop(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            sent = peer.sock.send(peer.outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(peer)
            return
        del peer.outgoing[:sent]
        if peer.blocked != bool(peer.outgoing):
            peer.blocked = bool(peer.outgoing)
            more = select.EPOLLOUT if peer.blocked else 0
            self._loop.modify(peer.sock.fileno(), select.EPOLLIN | more)

    def _drop(self, peer: Peer) -> None:
        if peer.closed:
            return
        peer.closed = True
        self._peers.remove(peer)
        self._loop.unwatch(peer.sock.fileno())
        peer.sock.close()
        self._on_gone(peer)
