"""The dispatcher: one loop that gives each call a slot, reads its output, ends it in time and answers.

It holds requests, so it never forks a call itself: zygotes do, and get code and stdin as files. But it is the
parent of what they fork. Invariants: every `run` that arrives is answered exactly once; a slot is free only when
no process of its uid is left and its scratch is empty; nothing that a program writes is parsed.

A call's life: waiting -> started (its zygote forks) -> running -> ended -> settled: slot clean, answered. Most calls
end within EARLY_S, and for those nothing is watched: their output is in the pipes when they end.

Settings (JSON, first argument): socket, box_root, slots (first, last + 1), uid_base (null: calls keep the
service's uid), reaper (a uid of its own: two dispatchers that shared one would kill each other), recycle_after
(calls of a zygote), walls (see walls.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

from . import linux, tree, wire
from .call import MIB, Call, Exit, file_of
from .imports import TIERS
from .loop import Loop
from .order import Order
from .peers import Peer, Peers
from .pid1 import ALIVE, BEAT
from .slot import AGAIN_S, QUIET_S, Slot, slots_of
from .strays import below
from .tier import Tier

EARLY_S = 0.01
WATCH_S = 0.1
SOFT_STOP_S = 0.3  # between the signal that lets a program flush and the one that it cannot survive
TICK_S = 1.0
STUCK_S = 5.0  # a zygote that takes so long to fork is replaced


class Dispatcher:
    def __init__(self, settings: dict[str, Any], signs_fd: int) -> None:
        self.signs_fd = signs_fd
        self.slots = slots_of(settings)
        self.free = deque(self.slots.values())
        self.waiting: deque[Call] = deque()
        self.running: dict[int, Call] = {}  # by slot index
        self.loop = Loop()
        self.loop.on_child_ended(self.reap)
        self.children = tree.OwnChildren()
        self.oom = linux.OomCounter()
        self.peers = Peers(
            self.loop, settings["socket"], lambda _: self.announce(), self.on_message, self.on_gone
        )
        self.null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.unreaped = False  # a child has ended whose call was not known then
        self.box_root, self.walls = settings["box_root"], settings["walls"]
        self.recycle_after: int = settings["recycle_after"]
        self.tiers = {name: Tier(name, self) for name in TIERS}
        self.unstarted = deque(self.tiers.values())
        self.start_tier()

    def run(self) -> None:
        self.tick()
        while True:
            now = time.monotonic()
            until = now + TICK_S
            for call in list(self.running.values()):
                if call.look_at <= now:
                    self.look(call)
                until = min(until, call.look_at)
            if self.unreaped:
                self.reap()
                until = min(until, now + AGAIN_S)
            self.loop.turn(until)

    def tick(self) -> None:
        self.sign(ALIVE)
        self.oom.look()
        for tier in self.tiers.values():
            tier.look()
        self.loop.later(TICK_S, self.tick)

    def sign(self, kind: bytes) -> None:
        """Tell PID 1 that this process lives (and, with BEAT, that the owner does)."""
        with suppress(BlockingIOError):  # many are waiting to be read, so one more says nothing new
            os.write(self.signs_fd, kind)

    # The gateway's side.

    def start_tier(self) -> None:
        """One after the other, the lightest first: calls run as soon as that one can fork, and those of
        another tier wait for it outside their clocks."""
        if self.unstarted:
            self.unstarted.popleft().start()

    def on_tier_ready(self) -> None:
        self.start_tier()
        self.announce()
        self.schedule()

    def announce(self) -> None:
        """Tell every peer that calls run, and what they cannot import as far as that is known."""
        if any(tier.ready for tier in self.tiers.values()):
            missing = sorted({name for tier in self.tiers.values() for name in tier.missing})
            self.peers.send_all({"op": "ready", "missing": missing})

    def on_message(self, peer: Peer, message: wire.Message) -> None:
        operation = message["op"]
        if operation == "run":
            self.waiting.append(Call.of(message, peer))
            self.schedule()
        elif operation == "beat":
            self.sign(BEAT)
            zygotes = {name: tier.report() for name, tier in self.tiers.items()}
            self.peers.send(peer, {"op": "beat", "zygotes": zygotes})
        elif operation == "cancel":
            self.cancel(peer, message["id"])
        elif operation == "quit":
            sys.exit("the gateway wants this dispatcher replaced")

    def on_gone(self, peer: Peer) -> None:
        self.cancel(peer, None)

    def cancel(self, peer: Peer, number: int | None) -> None:
        """End the call `number` of `peer`; all of its calls where None."""
        for call in list(self.waiting):
            if call.peer is peer and number in (None, call.id):
                self.waiting.remove(call)
                self.peers.send(peer, {"id": call.id, "status": "cancelled"})
        for call in list(self.running.values()):
            if call.peer is peer and number in (None, call.id):
                self.end(call, "cancelled")

    # A call's life.

    def schedule(self) -> None:
        for call in list(self.waiting):
            if not self.free:
                return
            if self.tiers[call.tier].ready:
                self.waiting.remove(call)
                self.start(self.free.popleft(), call)

    def start(self, slot: Slot, call: Call) -> None:
        program = call.program()
        out, out_inside = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        err, err_inside = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        inside = [file_of("code", program), out_inside, err_inside]
        for fd in (out_inside, err_inside):
            os.set_blocking(fd, True)
        stdin = self.null
        if call.stdin:
            # A lone surrogate, which stands for no bytes, is read as "?".
            stdin = file_of("stdin", call.stdin.encode("utf-8", "replace"))
            inside.append(stdin)
        for fd in (out, err):
            # The call may open it anew, as /dev/stdout; nobody else has a path to it.
            os.fchmod(fd, 0o666)
        call.pipes = {out: call.out, err: call.err}
        call.slot = slot
        call.started_at = time.monotonic()
        call.look_at = call.started_at + EARLY_S
        self.running[slot.index] = call
        order = Order.of(slot.index, slot.uid, len(program), call.mode, call.limits)
        self.tiers[call.tier].fork(order, [inside[0], stdin, out_inside, err_inside])
        for fd in inside:
            os.close(fd)

    def on_forked(self, slot: int, pid: int) -> None:
        self.running[slot].pid = pid

    def on_lost(self, slot: int) -> None:
        """The zygote did not fork the call in this slot, or died before it said so."""
        call = self.running.get(slot)
        if call is not None and call.exit is None and call.pid is None:
            call.ended_by = "sandbox_error"
            self.on_exit(call, Exit(0, 0.0, 0.0))

    def look(self, call: Call) -> None:
        """What is due for a call that has not ended by itself."""
        if call.exit is not None:
            self.settle(call)
            return
        now = time.monotonic()
        if call.ended_by is not None:
            self.kill(call)
            return
        if not call.watched:
            call.watched = True
            for fd in call.pipes:
                self.loop.watch(fd, lambda _, fd=fd: self.on_output(call, fd))  # type: ignore[misc]
        limits = call.limits
        self.read_pids()
        if call.pid is None and now - call.started_at > STUCK_S:
            self.tiers[call.tier].replace()
        usage = self.usage(call) if call.pid is not None else tree.Usage()
        call.cpu_seen_s = max(call.cpu_seen_s, usage.cpu_s)
        if usage.memory > limits["total_memory_mb"] * MIB:
            self.end(call, "memory")
        elif (
            usage.cpu_s >= limits["cpu_s"] + SOFT_STOP_S
        ):  # one process alone meets its own limit first
            self.stop(call, "cpu_limit", signal.SIGXCPU)
        elif now - call.started_at >= limits["wall_s"]:
            self.stop(call, "timeout", signal.SIGALRM)
        else:
            call.look_at = min(now + WATCH_S, call.started_at + limits["wall_s"])

    def stop(self, call: Call, status: str, number: int) -> None:
        """End a call, but let it hand over its output first."""
        assert call.slot is not None
        call.ended_by = status
        call.slot.kill(call.pid, number)
        call.look_at = time.monotonic() + SOFT_STOP_S

    def end(self, call: Call, status: str) -> None:
        if call.exit is None:
            call.ended_by = call.ended_by or status
            self.kill(call)

    def kill(self, call: Call) -> None:
        """Kill the call, again and again until the kernel says that it has ended."""
        assert call.slot is not None
        call.slot.kill(call.pid)
        call.look_at = time.monotonic() + AGAIN_S * 10

    def on_output(self, call: Call, fd: int) -> None:
        if not call.read(fd):
            return
        if fd not in call.pipes:
            self.loop.unwatch(fd)
            os.close(fd)
        elif call.too_much_output:
            self.end(call, "output_limit")

    def reap(self) -> None:
        """A child has ended: find out whose, and settle its call."""
        self.unreaped = self.read_pids()
        for call in list(self.running.values()):
            if call.pid is None or call.exit is not None:
                continue
            pid, status, usage = os.wait4(call.pid, os.WNOHANG)
            if pid != 0:
                cpu_s = usage.ru_utime + usage.ru_stime
                self.on_exit(call, Exit(status, cpu_s, usage.ru_maxrss / 1024))

    def on_exit(self, call: Call, end: Exit) -> None:
        call.exit = end
        call.ended_at = time.monotonic()
        self.settle(call)

    def settle(self, call: Call) -> None:
        """Answer and free the slot once nothing of the call is left."""
        slot = call.slot
        assert slot is not None
        if strays := self.strays(slot):
            self.end_strays(call, slot, strays)
            return
        for fd in list(call.pipes):
            while fd in call.pipes and call.read(fd):
                pass
            self.loop.unwatch(fd)
            os.close(fd)
        call.pipes.clear()
        slot.clean()
        del self.running[slot.index]
        self.peers.send(call.peer, call.result(self.oom))
        self.free.append(slot)
        self.schedule()

    def strays(self, slot: Slot) -> list[int]:
        """Processes that the ended call in `slot` left behind: each is our child, or below one that is."""
        unknown = self.unknown_children()
        if unknown and slot.uid is None:
            self.wait_for_pids()
            return list(self.unknown_children())
        return [pid for pid in unknown if tree.real_uid(pid) == slot.uid]

    def end_strays(self, call: Call, slot: Slot, strays: list[int]) -> None:
        slot.kill(None)
        for pid in below(strays) if slot.uid is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strays:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG | linux.WAIT_FOR_ALL)
        now = time.monotonic()
        call.look_at = now + AGAIN_S
        if now - call.ended_at > QUIET_S:
            sys.exit(f"slot {slot.index} is not empty {QUIET_S:g} s after its call {call.id}")

    def unknown_children(self) -> set[int]:
        """Children that are neither a zygote nor a call whose pid is known."""
        known = {call.pid for call in self.running.values() if call.exit is None}
        for tier in self.tiers.values():
            known.update(tier.pids)
        return self.children.pids() - known

    def read_pids(self) -> bool:
        """Learn the pids of calls that were forked; is one still to come?"""
        return sum(tier.read_pids() for tier in self.tiers.values()) > 0

    def wait_for_pids(self) -> None:
        """Until no child is unknown because its zygote has not told its pid yet."""
        give_up_at = time.monotonic() + QUIET_S
        while self.read_pids():
            if time.monotonic() > give_up_at:
                sys.exit("a zygote does not fork")
            time.sleep(AGAIN_S / 10)

    def usage(self, call: Call) -> tree.Usage:
        """Of all processes of a running call."""
        assert call.slot is not None
        assert call.pid is not None
        uid, roots = call.slot.uid, [call.pid]
        if uid is not None:  # else nothing leaves the tree below the first process
            roots += self.strays(call.slot)
        return tree.usage_below(roots, uid, self.tiers[call.tier].memory)


def main() -> None:
    linux.die_with_parent()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    settings = json.loads(sys.argv[1])
    Dispatcher(settings, int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
