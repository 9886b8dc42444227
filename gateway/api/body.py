"""Reading a request's JSON body, within limits of size and time, and of the bytes that are held at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import hdrs, web

from gateway.serving.errors import RequestError, too_many

JSON = "application/json"
TIMEOUT_HEADERS = ("X-Stainless-Read-Timeout", "X-Stainless-Timeout")
"""How OpenAI's clients say how many seconds they wait."""


class Bodies:
    """All bodies of requests under way; a prompt weighs about as much as its body, to the answer's end."""

    def __init__(self, limit: int, largest: int) -> None:
        """In bytes: `limit` for all together, `largest` for one. One body alone is never too many."""
        self.held = 0
        self.largest = largest
        self._limit = limit

    def take(self, size: int) -> None:
        """Raises RequestError: too much is held already."""
        if self.held and self.held + size > self._limit:
            raise too_many("The requests under way are too large together.", "too_many_bytes")
        self.held += size


class Hold:
    """One request's share of what is held."""

    __slots__ = ("bodies", "size")

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self.size = 0

    def add(self, size: int) -> None:
        """Raises RequestError: this body, or all together, are too large."""
        self.check(self.size + size)
        self.bodies.take(size)
        self.size += size

    def check(self, size: int) -> None:
        """Raises RequestError: a body of that size is too large."""
        if size > self.bodies.largest:
            message = f"The request body is larger than {self.bodies.largest} bytes."
            raise RequestError(413, message, code="request_too_large")

    def release(self) -> None:
        self.bodies.held -= self.size
        self.size = 0


async def read_body(request: web.Request, seconds: float, hold: Hold | None = None) -> bytes:
    """Raises RequestError for a body that is not called JSON, takes too long to come, or is too large.

    `hold` answers for its bytes as they come: a client that announces many and sends none takes no room.
    """
    kind = request.headers.get(hdrs.CONTENT_TYPE, JSON)
    if kind != JSON and not _is_json(kind):
        message = "The request body must be JSON, with `Content-Type: application/json`."
        raise RequestError(415, message, code="unsupported_media_type")
    length = request.content_length
    if hold is not None and length is not None and hdrs.CONTENT_ENCODING not in request.headers:
        hold.check(length)
        if request.content.is_eof():
            hold.add(length)
            hold = None
    if request.content.is_eof() and hold is None:
        return request.content.read_nowait()
    try:
        async with asyncio.timeout(seconds):
            return await (request.read() if hold is None else _read_counted(request, hold))
    except TimeoutError:
        message = f"The request body did not come in {seconds:g} s."
        raise RequestError(408, message, code="request_timeout", headers={"Connection": "close"}) from None


async def _read_counted(request: web.Request, hold: Hold) -> bytes:
    parts = []
    async for part in request.content.iter_any():
        hold.add(len(part))
        parts.append(part)
    return b"".join(parts)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def patience_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that the client waits, if its library says so."""
    for name in TIMEOUT_HEADERS:
        text = headers.get(name, "")
        if text.replace(".", "", 1).isdecimal():
            return float(text)
    return None
