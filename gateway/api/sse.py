"""Frames of an OpenAI event stream, from per-stream templates: no re-encoding of a whole chunk per token."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

DONE = b"data: [DONE]\n\n"

encode_text = msgspec.json.Encoder().encode
"""A string as JSON text, quotes included."""


def frame(payload: bytes) -> bytes:
    """One event."""
    return b"data: " + payload + b"\n\n"


def named_frame(name: str, payload: bytes) -> bytes:
    """One event that has a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), payload)


def stream_prefix(stream_id: str, kind: str, created: int, model: str) -> bytes:
    """Start of every event of a stream, up to and including `"choices":[`."""
    return b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
        encode_text(stream_id),
        encode_text(kind),
        created,
        encode_text(model),
    )


class FrameBuffer:
    """Rendered frames: handed to `write` once a read, or kept until `take` while that is not set."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        """Pieces of frames: they are joined once, when they go out."""
        self.write: Callable[[bytes], None] | None = None

    def flush(self) -> None:
        pending, write = self._pending, self.write
        if pending and write is not None:
            data = b"".join(pending)
            pending.clear()
            write(data)

    def take(self) -> bytes:
        """What has been rendered and not been handed out."""
        data = b"".join(self._pending)
        self._pending.clear()
        return data
