"""How each API says that something failed, before its answer and in the middle of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from aiohttp import web

from gateway.api.anthropic.errors import error_body
from gateway.api.errors import body_of, error_response
from gateway.api.request_id import ANTHROPIC_HEADER, MESSAGES
from gateway.api.sse import DONE, frame, named_frame
from gateway.serving.errors import RequestError


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One API's."""

    last_frames: Callable[[RequestError], bytes]
    """The end of a stream that broke."""
    named_events: bool = False
    """Streams are of events with names, and end with one of them."""


def _error_event(error: RequestError) -> bytes:
    event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return named_frame("error", msgspec.json.encode(event))


OPENAI = Dialect(last_frames=lambda error: frame(body_of(error)) + DONE)
OPENAI_EVENTS = Dialect(last_frames=_error_event, named_events=True)
ANTHROPIC = Dialect(last_frames=lambda error: named_frame("error", error_body(error)), named_events=True)


def failure(error: RequestError, path: str, request_id: str) -> web.Response:
    """The answer to a request of that path which failed before anything was sent."""
    if not path.startswith(MESSAGES):
        return error_response(error, request_id)
    response = error_response(error, request_id, partial(error_body, request_id=request_id))
    response.headers[ANTHROPIC_HEADER] = request_id
    return response
