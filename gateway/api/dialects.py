"""How each API says that something failed, before its answer and in the middle of one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.api.anthropic.errors import error_body
from gateway.api.errors import body_of
from gateway.api.sse import DONE, frame, named_frame
from gateway.serving.errors import RequestError


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One API's."""

    body: Callable[[RequestError], bytes] = body_of
    last_frames: Callable[[RequestError], bytes]
    """The end of a stream that broke."""
    named_events: bool = False
    """Streams are of events with names, and end with one of them."""


def _error_event(error: RequestError) -> bytes:
    event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return named_frame("error", msgspec.json.encode(event))


OPENAI = Dialect(last_frames=lambda error: frame(body_of(error)) + DONE)
OPENAI_EVENTS = Dialect(last_frames=_error_event, named_events=True)
ANTHROPIC = Dialect(
    body=error_body, last_frames=lambda error: named_frame("error", error_body(error)), named_events=True
)


def dialect_of(path: str) -> Dialect:
    """The dialect that a path's errors are in."""
    return ANTHROPIC if path.startswith("/v1/messages") else OPENAI
