"""Requests for workers that take no token ids: passed through, their own answers with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import numpy as np
from aiohttp import web

from gateway.api.body import patience_of
from gateway.api.dialects import Dialect
from gateway.api.errors import as_request_error, in_stream
from gateway.api.fields import steers
from gateway.api.keep_alive import KeepAlive
from gateway.api.request_id import headers_of
from gateway.api.services import Services
from gateway.api.sse import FrameBuffer, frame, named_frame
from gateway.api.stream_response import EventStreamResponse, stream_answer
from gateway.engines.base import EngineError
from gateway.engines.openai import OpenAiEngine, RelayCall, type_of
from gateway.serving.admission import Turn
from gateway.serving.dispatch import LegError
from gateway.serving.failures import Stage, Trail
from gateway.serving.job import Job
from gateway.serving.request import Fields
from gateway.tokens.prompts import EncodedPrompt

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
    """Route by load and pass the request through, to another worker when one fails before it answers.

    Raises NoWorkerError, EngineError, RequestError.
    """
    job = _job(request, fields, request_id)
    payload, headers = without_steering(body), headers_of(request)
    if not fields.values.get("stream"):

        async def whole(engine: OpenAiEngine) -> web.StreamResponse:
            answer = await engine.whole(path, payload, request_id)
            return web.Response(body=answer, content_type="application/json", headers=headers)

        return await _try_workers(services, job, whole)
    response = EventStreamResponse(request, headers)
    keep_alive = KeepAlive(response, services.settings.sse_keep_alive_seconds)
    try:
        send = partial(_stream, response, path, payload, request_id, keep_alive, dialect)
        return await _try_workers(services, job, send)
    except Exception as error:
        if not await keep_alive.committed():
            raise
        await response.write_eof(dialect.last_frames(as_request_error(error)))
        return response
    finally:
        keep_alive.close()


async def _try_workers(
    services: Services, job: Job, send: Callable[[OpenAiEngine], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    dispatcher, trail, turn = services.flights.dispatcher, Trail(), Turn(job.priority, job.patience)
    while True:
        attempt = await dispatcher.place(job, trail, turn, None)
        try:
            engine = services.fleet.relay(attempt.placement.target.worker)
            if engine is None:
                raise EngineError("the worker has gone", retryable=True, lost=True, unsent=True)
            return await send(engine)
        except EngineError as error:
            dispatcher.note(job, attempt, LegError(Stage.WHOLE, error), trail)
        finally:
            attempt.close()


def _job(request: web.Request, fields: Fields, request_id: str) -> Job:
    """What the router must know of it."""
    return Job(
        request_id=request_id,
        model=fields.values["model"],
        prompt=EncodedPrompt(NO_TOKENS, b""),
        sampling={},
        top_level={},
        max_tokens=0,
        cache_salt=None,
        started=0.0,
        priority=fields.values.get("priority", 0),
        patience=partial(patience_of, request.headers),
    )


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
    path: str,
    body: bytes,
    request_id: str,
    keep_alive: KeepAlive,
    dialect: Dialect,
    engine: OpenAiEngine,
) -> web.StreamResponse:
    stream = _RelayStream(named=dialect.named_events)
    call = await engine.stream(path, body, request_id, stream, named=dialect.named_events)
    call.done.add_done_callback(stream.set_ready)
    try:
        await stream.ready
        if call.done.done():
            call.done.result()
        tail = partial(_tail, stream, call, request_id, dialect)
        return await stream_answer(response, stream, call, tail, keep_alive)
    finally:
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
