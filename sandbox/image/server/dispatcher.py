"""The dispatcher: one loop that gives each call a slot, reads its output, ends it in time and answers.

It holds requests, so it never forks a call itself: zygotes do, and get code and stdin as files. Invariants:
every `run` that arrives is answered exactly once; a slot is free only when no process of its uid is left
and its scratch is empty; nothing that a program writes is parsed.

Settings (JSON, first argument): socket, box_root, slots (first, last + 1), uid_base (null: calls keep the
service's uid), reaper (a uid of its own: two dispatchers that shared one would kill each other), walls (see walls.py).
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import linux, wire
from .call import Call, Exit
from .pid1 import ALIVE, BEAT
from .slot import Slot
from .tier import Tier

READ_SIZE = 1 << 16
SOFT_STOP_S = 0.3  # between the signal that lets a program flush and the one that it cannot survive
KILL_AGAIN_S = 0.02
QUIET_S = 2.0  # a slot that is not clean by then is given up
TICK_S = 1.0
TIERS = ("std", "sci")


class Peer:
    """A connection to the gateway; writes never block the loop."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decoder = wire.Decoder()
        self.outgoing = bytearray()
        self.closed = False


class Dispatcher:
    def __init__(self, settings: dict[str, Any], signs_fd: int) -> None:
        self.signs_fd = signs_fd
        self.slots = slots_of(settings)
        self.free = deque(self.slots.values())
        self.waiting: deque[Call] = deque()
        self.running: dict[int, Call] = {}  # by slot index
        self.poll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.timer_numbers = itertools.count()
        self.peers: dict[int, Peer] = {}
        self.walls = settings["walls"]
        self.tiers = {name: Tier(name, self) for name in TIERS}
        self.listener = self._listen(settings["socket"])

    def _listen(self, path: str) -> socket.socket:
        with suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        os.chmod(
            path, 0o666
        )  # who may reach it is decided by the directories around it, on both sides
        listener.listen(8)
        self.watch(listener.fileno(), lambda _: self._accept())
        return listener

    # The loop.

    def watch(self, fd: int, handler: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        del self.handlers[fd]
        self.poll.unregister(fd)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (time.monotonic() + delay_s, next(self.timer_numbers), action))

    def loop(self) -> None:
        while True:
            timeout = max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else -1
            for fd, events in self.poll.poll(timeout):
                if fd in self.handlers:
                    self.handlers[fd](events)
            while self.timers and self.timers[0][0] <= time.monotonic():
                heapq.heappop(self.timers)[2]()

    def sign(self, kind: bytes) -> None:
        """Tell PID 1 that this process lives (and, with BEAT, that the owner does)."""
        with suppress(BlockingIOError):  # many are waiting to be read, so one more says nothing new
            os.write(self.signs_fd, kind)

    def tick(self) -> None:
        self.sign(ALIVE)
        self.later(TICK_S, self.tick)

    # The gateway's side.

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        sock.setblocking(False)
        peer = Peer(sock)
        self.peers[sock.fileno()] = peer
        self.watch(sock.fileno(), lambda events: self._on_peer(peer, events))
        self.announce()

    def announce(self) -> None:
        """Tell every peer once all tiers can fork."""
        if not all(tier.ready for tier in self.tiers.values()):
            return
        missing = sorted({name for tier in self.tiers.values() for name in tier.missing})
        for peer in list(self.peers.values()):
            self.send(peer, {"op": "ready", "missing": missing})
        self.schedule()

    def _on_peer(self, peer: Peer, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(peer)
        if peer.closed or not events & ~select.EPOLLOUT:
            return
        try:
            data = peer.sock.recv(1 << 18)
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

    def _on_message(self, peer: Peer, message: wire.Message) -> None:
        operation = message["op"]
        if operation == "run":
            call = Call(message["id"], message["code"], message["stdin"], message["limits"], peer)
            call.mode, call.history = message["mode"], message["history"]
            self.waiting.append(call)
            self.schedule()
        elif operation == "beat":
            self.sign(BEAT)
            self.send(peer, {"op": "beat"})
        elif operation == "cancel":
            self._cancel(peer, message["id"])
        elif operation == "quit":
            sys.exit("the gateway wants this dispatcher replaced")

    def _cancel(self, peer: Peer, number: int | None) -> None:
        """End the call `number` of `peer`; all of its calls where None."""
        for call in list(self.waiting):
            if call.peer is peer and number in (None, call.id):
                self.waiting.remove(call)
                self.send(peer, {"id": call.id, "status": "cancelled"})
        for index, call in list(self.running.items()):
            if call.peer is peer and number in (None, call.id):
                self.end(self.slots[index], call, "cancelled")

    def _drop(self, peer: Peer) -> None:
        if peer.closed:
            return
        peer.closed = True
        self.unwatch(peer.sock.fileno())
        del self.peers[peer.sock.fileno()]
        peer.sock.close()
        self._cancel(peer, None)

    def send(self, peer: Peer, message: wire.Message) -> None:
        if peer.closed:
            return
        idle = not peer.outgoing
        peer.outgoing += wire.encode(message)
        if idle:
            self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            sent = peer.sock.send(peer.outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(peer)
            return
        del peer.outgoing[:sent]
        self.poll.modify(
            peer.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if peer.outgoing else 0)
        )

    # A call's life: waiting -> forked by a zygote -> ended -> slot made clean -> answered.

    def schedule(self) -> None:
        while self.waiting and self.free and self.tiers[self.waiting[0].tier].ready:
            self._start(self.free.popleft(), self.waiting.popleft())

    def _start(self, slot: Slot, call: Call) -> None:
        files = call.files()
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        for fd, capture in ((out_read, call.out), (err_read, call.err)):
            os.set_blocking(fd, False)
            os.fchmod(
                fd, 0o666
            )  # the call may open it anew as /dev/stdout; nobody else has a path to it
            call.open_pipes.add(fd)
            self.watch(fd, lambda _, fd=fd, capture=capture: self._read(slot, call, fd, capture))  # type: ignore[misc]
        slot.pid = None
        self.running[slot.index] = call
        call.begin()
        request = {"slot": slot.index, "uid": slot.uid, "box": slot.box, "limits": call.limits}
        request["mode"] = call.mode
        inner = [*files, out_write, err_write]
        self.tiers[call.tier].fork(request, inner)
        for fd in inner:
            os.close(fd)
        self.later(call.limits["wall_s"], lambda: self._time_out(slot, call))

    def _read(self, slot: Slot, call: Call, fd: int, capture: Any) -> None:
        data = b""
        try:
            data = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return
        if data:
            capture.add(data)
            if call.too_much_output:
                self.end(slot, call, "output_limit")
            return
        self._close_pipe(call, fd)
        if call.exit is not None and not call.open_pipes:
            self._settle(slot, call)

    def _close_pipe(self, call: Call, fd: int) -> None:
        call.open_pipes.remove(fd)
        self.unwatch(fd)
        os.close(fd)

    def _time_out(self, slot: Slot, call: Call) -> None:
        if self.running.get(slot.index) is not call or call.exit is not None:
            return
        call.ended_by = call.ended_by or "timeout"
        slot.kill(signal.SIGALRM)
        self.later(SOFT_STOP_S, lambda: self.end(slot, call, "timeout"))

    def end(self, slot: Slot, call: Call, status: str) -> None:
        """Kill the call, as often as it takes for its zygote to report the end."""
        if self.running.get(slot.index) is not call or call.exit is not None:
            return
        call.ended_by = call.ended_by or status
        slot.kill()
        self.later(KILL_AGAIN_S, lambda: self.end(slot, call, status))

    def on_forked(self, slot_index: int, pid: int) -> None:
        self.slots[slot_index].pid = pid

    def on_exit(self, slot_index: int, end: Exit | None) -> None:
        """The zygote reports the end of the call in this slot (None: it could not fork, or has died)."""
        call = self.running.get(slot_index)
        if call is None or call.exit is not None:
            return
        slot = self.slots[slot_index]
        call.ended_at = time.monotonic()
        if end is None:
            call.ended_by = "sandbox_error"
            end = Exit(0, 0.0, 0.0)
        call.exit = end
        slot.kill()
        for fd in list(call.open_pipes):
            self._read_rest(slot, call, fd)
        self._settle(slot, call)

    def _read_rest(self, slot: Slot, call: Call, fd: int) -> None:
        """The usual case: all output is in the pipe already, and its end too."""
        handler = self.handlers[fd]
        while fd in call.open_pipes:
            before = call.out.total + call.err.total
            handler(select.EPOLLIN)
            if call.out.total + call.err.total == before or call.too_much_output:
                return

    def _settle(self, slot: Slot, call: Call) -> None:
        """Answer and free the slot once nothing of the call is left."""
        if self.running.get(slot.index) is not call:
            return
        if call.open_pipes or slot.survivors():
            if time.monotonic() - call.ended_at > QUIET_S:
                self._give_up(slot, call)
                return
            slot.kill()
            self.later(KILL_AGAIN_S / 10, lambda: self._settle(slot, call))
            return
        slot.clean()
        del self.running[slot.index]
        self.send(call.peer, call.result())
        self.free.append(slot)
        self.schedule()

    def _give_up(self, slot: Slot, call: Call) -> None:
        """A process that no kill ends holds the slot: end the whole sandbox, the owner starts a new one."""
        print(
            f"slot {slot.index} is not empty {QUIET_S:g} s after its call {call.id}",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(1)


def slots_of(settings: dict[str, Any]) -> dict[int, Slot]:
    """The slots by their numbers, with nothing in them that a former dispatcher left behind."""
    base = settings["uid_base"]
    slots = [
        Slot(
            number,
            None if base is None else base + number,
            settings["reaper"],
            os.path.join(settings["box_root"], str(number)),
        )
        for number in range(*settings["slots"])
    ]
    give_up_at = time.monotonic() + QUIET_S
    for slot in slots:
        slot.kill()
        while slot.survivors():
            if time.monotonic() > give_up_at:
                sys.exit(f"slot {slot.index}: processes of a former dispatcher do not end")
            time.sleep(KILL_AGAIN_S / 10)
            slot.kill()
        slot.clean()
    return {slot.index: slot for slot in slots}


def main() -> None:
    linux.die_with_parent()
    settings = json.loads(sys.argv[1])
    dispatcher = Dispatcher(settings, int(sys.argv[2]))
    dispatcher.tick()
    dispatcher.loop()


if __name__ == "__main__":
    main()
