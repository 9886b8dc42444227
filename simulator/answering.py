"""HTTP answers: JSON, whole generations and streams of them."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
from aiohttp import web

from simulator import replies
from simulator.errors import ApiError
from simulator.exchange import Exchange

EVENT_STREAM = "text/event-stream; charset=utf-8"


def json_answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A value as JSON."""
    return raw_json(msgspec.json.encode(value), status, headers)


def raw_json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """JSON that is encoded already."""
    kind = {"Content-Type": "application/json"}
    return web.Response(body=body, status=status, headers=kind | (headers or {}))


async def send(request: web.Request, exchange: Exchange, *, stream: bool) -> web.StreamResponse:
    """A generation's answer. A client that leaves stops it."""
    if not stream:
        return raw_json(await exchange.body())
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    response.enable_chunked_encoding()
    async with aclosing(exchange.stream()) as events:
        await response.prepare(request)
        try:
            async for event in events:
                await response.write(event)
        except ApiError as error:
            await response.write(b"data: " + error.body() + b"\n\n" + replies.DONE)
    await response.write_eof()
    return response
