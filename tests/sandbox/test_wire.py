"""The frames: whatever the stream is cut into, the same messages come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.image.server import wire

TEXT = st.text(st.characters(codec=None))  # lone surrogates included
MESSAGES = st.lists(
    st.dictionaries(TEXT, st.one_of(st.integers(), TEXT, st.none()), max_size=4), max_size=6
)


@given(MESSAGES, st.lists(st.integers(1, 9), max_size=400))
def test_any_cut_gives_the_same_messages(messages: list[wire.Message], cuts: list[int]) -> None:
    stream = b"".join(wire.encode(message) for message in messages)
    decoder, seen = wire.Decoder(), []
    for size in cuts:
        seen += decoder.feed(stream[:size])
        stream = stream[size:]
    assert seen + decoder.feed(stream) == messages


def test_absurd_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(wire.WireError, match="at most"):
        wire.Decoder().feed(b"\xff\xff\xff\xff")


def test_only_objects_are_messages() -> None:
    with pytest.raises(wire.WireError, match="list"):
        wire.decode(b"[1]")
