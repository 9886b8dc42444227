"""Frames of an OpenAI event stream, from per-stream templates: no re-encoding of a whole chunk per token."""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"

encode_text = msgspec.json.Encoder().encode
"""A string as JSON text, quotes included."""


def frame(payload: bytes) -> bytes:
    """One event."""
    return b"data: " + payload + b"\n\n"


def stream_prefix(stream_id: str, kind: str, created: int, model: str) -> bytes:
    """Start of every event of a stream, up to and including `"choices":[`."""
    return b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
        encode_text(stream_id),
        encode_text(kind),
        created,
        encode_text(model),
    )


def chunked(data: bytes) -> bytes:
    """HTTP/1.1 chunk framing (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)
