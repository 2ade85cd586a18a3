"""What is kept of one output stream: the head and the tail, and a count of everything."""

from __future__ import annotations

from collections import deque


class Capture:
    """Keeps at most `keep` bytes; memory never exceeds that plus one read, however much arrives."""

    def __init__(self, keep: int) -> None:
        self._head_room = keep // 2
        self._tail_room = keep - keep // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_room:
            self._tail_size -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        return self.total > self._head_room + self._tail_room

    def text(self) -> str:
        """The kept bytes as text, with a line that says how much is missing between head and tail."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        cut = self.total - self._head_room - self._tail_room
        head_text = self._head.decode("utf-8", "replace")
        tail_text = tail[-self._tail_room :].decode("utf-8", "replace")
        return f"{head_text}\n... {cut} bytes cut ...\n{tail_text}"
