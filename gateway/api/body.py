"""Reading a request's JSON body, within limits of size and time."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from gateway.serving.errors import RequestError

JSON = "application/json"


async def read_body(request: web.Request, seconds: float) -> bytes:
    """Raises RequestError for a body that is not called JSON, or that takes too long to come."""
    kind = request.headers.get(hdrs.CONTENT_TYPE, JSON)
    if kind != JSON and not _is_json(kind):
        message = "The request body must be JSON, with `Content-Type: application/json`."
        raise RequestError(415, message, code="unsupported_media_type")
    if request.content.is_eof():
        return await request.read()
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        message = f"The request body did not come in {seconds:g} s."
        raise RequestError(408, message, code="request_timeout", headers={"Connection": "close"}) from None


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")
