"""Frames of the sandbox: a length (u32, big endian), then that many bytes of JSON.

The one file that both sides of the container's wall use, so it imports the standard library only. JSON
keeps lone surrogates (as escapes), which programs may print.
"""

from __future__ import annotations

import json
import struct
from typing import Any

HEADER = struct.Struct("!I")
MAX_FRAME = 64 << 20  # bytes; a longer length means a broken or foreign peer

Message = dict[str, Any]


class WireError(Exception):
    """The peer does not speak this protocol."""


def encode(message: Message) -> bytes:
    """One message as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """The length that a frame's header announces."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        raise WireError(f"a frame of {length} bytes was announced, at most {MAX_FRAME} are allowed")
    return int(length)


def decode(body: bytes) -> Message:
    """The message in a frame's body."""
    message = json.loads(body)
    if not isinstance(message, dict):
        raise WireError(f"expected a JSON object, got {type(message).__name__}")
    return message


class Decoder:
    """Turns a byte stream that arrives in pieces into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now that `data` has arrived."""
        self._buffer += data
        messages: list[Message] = []
        offset = 0
        while len(self._buffer) - offset >= HEADER.size:
            start = offset + HEADER.size
            end = start + body_length(bytes(self._buffer[offset:start]))
            if len(self._buffer) < end:
                break
            messages.append(decode(bytes(self._buffer[start:end])))
            offset = end
        del self._buffer[:offset]
        return messages
