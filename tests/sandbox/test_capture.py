"""Output that is kept: all of it while it fits, else exactly the head and the tail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandbox.image.server.capture import Capture

PIECES = st.lists(st.text("abcdefgh\n", max_size=30).map(str.encode), max_size=20)


@given(PIECES, st.integers(1, 80))
def test_keeps_head_and_tail(pieces: list[bytes], keep: int) -> None:
    capture = Capture(keep)
    for piece in pieces:
        capture.add(piece)
    everything = b"".join(pieces)
    assert capture.total == len(everything)
    assert capture.truncated == (len(everything) > keep)
    if not capture.truncated:
        assert capture.text() == everything.decode()
        return
    head, tail = everything[: keep // 2], everything[len(everything) - (keep - keep // 2) :]
    middle = f"\n... {len(everything) - keep} bytes cut ...\n"
    assert capture.text() == head.decode() + middle + tail.decode()


def test_memory_stays_bounded() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.add(b"x" * 100)
    held = len(capture._head) + sum(len(piece) for piece in capture._tail)
    assert held <= 1000 + 100


def test_bytes_that_are_no_text_are_replaced() -> None:
    capture = Capture(10)
    capture.add(b"a\xff")
    assert capture.text() == "a\ufffd"
