"""Requests for workers that take no token ids: passed through, their own answers with them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import msgspec
import numpy as np
from aiohttp import web

from gateway.api.dialects import Dialect
from gateway.api.errors import from_engine, in_stream
from gateway.api.fields import steers
from gateway.api.keep_alive import KeepAlive
from gateway.api.request_id import headers_of
from gateway.api.services import Services
from gateway.api.sse import FrameBuffer, frame, named_frame
from gateway.api.stream_response import EventStreamResponse, stream_answer
from gateway.engines.base import EngineError
from gateway.engines.openai import OpenAiEngine, RelayCall, type_of
from gateway.serving.request import Fields
from router.messages import Placement, Release, RouteRequest

logger = logging.getLogger(__name__)

NO_TOKENS = np.empty(0, np.uint32)


async def relay(
    services: Services,
    request: web.Request,
    path: str,
    body: bytes,
    fields: Fields,
    request_id: str,
    dialect: Dialect,
) -> web.StreamResponse:
    """Route by load and pass the request through. Raises NoWorkerError, EngineError."""
    failed: frozenset[str] = frozenset()
    route = RouteRequest(
        request_id=request_id, model=fields.values["model"], token_ids=NO_TOKENS, exclude=failed
    )
    placement = services.router.route(route)
    try:
        return await _send(services, request, path, body, fields, request_id, dialect, placement)
    finally:
        services.router.release(Release(placement.reservation))


async def _send(
    services: Services,
    request: web.Request,
    path: str,
    body: bytes,
    fields: Fields,
    request_id: str,
    dialect: Dialect,
    placement: Placement,
) -> web.StreamResponse:
    worker = placement.target.worker
    engine = services.fleet.relay(worker)
    if engine is None:
        raise EngineError("the worker has gone", retryable=True)
    headers = headers_of(request)
    try:
        if fields.values.get("stream"):
            response = EventStreamResponse(request, headers)
            keep_alive = KeepAlive(response, services.settings.sse_keep_alive_seconds)
            cleaned = without_steering(body)
            return await _stream(response, engine, path, cleaned, request_id, keep_alive, dialect)
        answer = await engine.whole(path, without_steering(body), request_id)
    except EngineError as error:
        services.fleet.report_failure(worker, error)
        raise
    return web.Response(body=answer, content_type="application/json", headers=headers)


class _RelayStream(FrameBuffer):
    """Frames of a relayed stream, as a renderer of `stream_answer`."""

    def __init__(self, *, named: bool) -> None:
        super().__init__()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._named = named

    def on_event(self, payload: bytes) -> None:
        name = type_of(payload) if self._named else ""
        self._pending.append(named_frame(name, payload) if name else frame(payload))
        self.set_ready()

    def set_ready(self, _: object = None) -> None:
        if not self.ready.done():
            self.ready.set_result(None)


async def _stream(
    response: EventStreamResponse,
    engine: OpenAiEngine,
    path: str,
    body: bytes,
    request_id: str,
    keep_alive: KeepAlive,
    dialect: Dialect,
) -> web.StreamResponse:
    stream = _RelayStream(named=dialect.named_events)
    call: RelayCall | None = None
    try:
        call = await engine.stream(path, body, request_id, stream, named=dialect.named_events)
        call.done.add_done_callback(stream.set_ready)
        await stream.ready
        if call.done.done():
            call.done.result()
        tail = partial(_tail, stream, call, request_id, dialect)
        return await stream_answer(response, stream, call, tail, keep_alive)
    except EngineError as error:
        if not await keep_alive.committed():
            raise
        await response.write_eof(dialect.last_frames(from_engine(error)))
        return response
    finally:
        keep_alive.close()
        if call is not None:
            call.abort()


async def _tail(stream: _RelayStream, call: RelayCall, request_id: str, dialect: Dialect) -> bytes:
    try:
        await asyncio.shield(call.done)
    except EngineError as error:
        logger.warning("relayed stream %s broke: %s", request_id, error)
        return stream.take() + dialect.last_frames(in_stream(error))
    return stream.take()


def without_steering(body: bytes) -> bytes:
    """The client's body, less the fields that would steer an engine."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    kept = {name: raw for name, raw in fields.items() if not steers(name)}
    return body if len(kept) == len(fields) else msgspec.json.encode(kept)
