"""One generation request from body to answer, the same for chats and plain completions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from aiohttp import web

from gateway.access.access import Grant
from gateway.api.accounting import account, settle
from gateway.api.batch import answer_batch
from gateway.api.body import Hold, patience_of, read_body
from gateway.api.dialects import OPENAI, Dialect
from gateway.api.errors import as_request_error, in_stream
from gateway.api.granted import GRANT, apply_grant, charge_for, keep_to
from gateway.api.head import Head
from gateway.api.keep_alive import KeepAlive
from gateway.api.relay import relay
from gateway.api.request_id import headers_of, new_id
from gateway.api.services import Services
from gateway.api.stream_response import EventStreamResponse, StreamRenderer, stream_answer
from gateway.api.usage import Usage, usage_headers, usage_of_choices
from gateway.engines.base import EngineError
from gateway.serving.errors import RequestError, bad_request, model_not_found, unavailable
from gateway.serving.flight import Flight
from gateway.serving.generation import Emitter
from gateway.serving.job import Prepared
from gateway.serving.prepare import Preparer
from gateway.serving.request import Fields
from parsers.base import OutputParser

logger = logging.getLogger(__name__)


RETRY_COUNT = "x-stainless-retry-count"
"""How often the client has tried before, as OpenAI's libraries tell."""


class Stream(StreamRenderer, Emitter, Protocol):
    def end(self, choices: int, usage: Usage | None, own: Sequence[Usage] = ()) -> bytes:
        """`usage` if the client asked for it; `own` is that of each choice."""
        ...

    def fail(self, error: RequestError) -> bytes: ...


class Whole(Emitter, Protocol):
    def body(self, usage: Usage, parsers: Sequence[OutputParser]) -> bytes: ...


class Reader(Protocol):
    def __call__(self, body: bytes, *, strict: bool) -> Fields:
        """The checked fields of a body. Raises RequestError."""
        ...


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """What sets one generating endpoint apart from another."""

    path: str
    read: Reader
    required: str
    """The field that holds the input."""
    id_prefix: str
    prepare: Callable[[Preparer, Fields, str, float], Awaitable[Prepared]]
    stream: Callable[[Head], Stream]
    whole: Callable[[Head], Whole]
    dialect: Dialect = OPENAI
    split: Callable[[Fields], list[Fields]] | None = None
    """A request of several inputs to one for each."""


def generating(
    surface: Surface, services: Services
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The aiohttp handler of a surface."""

    async def handle(request: web.Request) -> web.StreamResponse:
        started = asyncio.get_running_loop().time()
        request_id = new_id(request)
        if services.draining:
            raise unavailable("The gateway is shutting down.", "shutting_down")
        hold = Hold(services.bodies)
        try:
            body = await read_body(request, services.settings.body_seconds, hold)
            return await serve(request, body, request_id, started)
        finally:
            hold.release()

    async def serve(request: web.Request, body: bytes, request_id: str, started: float) -> web.StreamResponse:
        fields = surface.read(body, strict=services.settings.strict)
        check_target(services, fields, surface.required)
        grant = request.get(GRANT)
        if grant is not None:
            body = apply_grant(grant, fields, body)
        if services.fleet.only_relays(fields.values["model"]):
            return await relay(services, request, surface.path, body, fields, request_id, surface.dialect)
        if fields.refusal is not None:
            raise fields.refusal
        if surface.split is not None and len(parts := surface.split(fields)) > 1:
            return await _several(services, request, surface, parts, request_id, started, grant)
        prepared = await surface.prepare(services.preparer, fields, request_id, started)
        if grant is not None:
            charge_for(grant, prepared)
            keep_to(grant, prepared, salted=services.settings.salt_per_key)
        if services.settings.policy == "session":
            prepared.job.session = request.headers.get(services.settings.session_header)
        prepared.job.client_retry = request.headers.get(RETRY_COUNT, "0") != "0"
        prepared.job.patience = partial(patience_of, request.headers)
        answer = _stream if prepared.stream else _whole
        return await answer(services, request, surface, prepared)

    return handle


def check_target(services: Services, fields: Fields, required: str) -> None:
    for name in ("model", required):
        if name not in fields.values:
            raise bad_request(f"`{name}` is required.", name, "missing_required_parameter")
    model = fields.values["model"]
    if not services.fleet.knows(model):
        if not services.fleet.has_known_models:
            raise unavailable("No worker is ready yet.", "no_worker", retry_after_seconds=5)
        raise model_not_found(model)


async def _whole(
    services: Services, request: web.Request, surface: Surface, prepared: Prepared
) -> web.StreamResponse:
    job = prepared.job
    answer: list[Whole] = []

    def fresh() -> Whole:
        """Each attempt starts its answer anew."""
        answer[:] = [surface.whole(_head(surface, prepared))]
        return answer[0]

    flight = await services.flights.run(job, services.preparer.generation(prepared, fresh))
    flight.close()
    parsers = [choice.parser for choice in flight.generation.choices]
    usage = account(services, prepared, flight)
    headers = headers_of(request)
    if prepared.strict_vendor:
        headers |= usage_headers(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)
    body = answer[0].body(usage, parsers)
    return web.Response(body=body, content_type="application/json", headers=headers)


async def _stream(
    services: Services, request: web.Request, surface: Surface, prepared: Prepared
) -> web.StreamResponse:
    response = EventStreamResponse(request, headers_of(request))
    keep_alive = KeepAlive(response, services.settings.sse_keep_alive_seconds)
    answer: list[Stream] = []

    def fresh() -> Stream:
        answer[:] = [surface.stream(_head(surface, prepared))]
        if not prepared.strict_vendor:
            response.prepare_early()
        return answer[0]

    try:
        flight = await services.flights.open(prepared.job, services.preparer.generation(prepared, fresh))
        if prepared.strict_vendor and not response.prepared:
            cached = flight.cached_tokens
            prompt_tokens = prepared.reading(flight.pool).counted_prompt_tokens
            response.headers.update(usage_headers(prompt_tokens, cached))
        try:
            tail = partial(_tail, services, prepared, flight, answer[0])
            return await stream_answer(response, answer[0], flight, tail, keep_alive)
        finally:
            flight.close()
            settle(prepared, flight)
    except Exception as error:
        if not await keep_alive.committed():
            response.withdraw()
            raise
        services.metrics.stream_failures += 1
        await response.write_eof(fresh().fail(as_request_error(error)))
        return response
    finally:
        keep_alive.close()


async def _several(
    services: Services,
    request: web.Request,
    surface: Surface,
    parts: Sequence[Fields],
    request_id: str,
    started: float,
    grant: Grant | None,
) -> web.StreamResponse:
    prepared = [
        await surface.prepare(services.preparer, fields, f"{request_id}-{number}", started)
        for number, fields in enumerate(parts)
    ]
    if grant is not None:
        for part in prepared:
            charge_for(grant, part)
            keep_to(grant, part, salted=services.settings.salt_per_key)
    head = msgspec.structs.replace(
        _head(surface, prepared[0]),
        id=surface.id_prefix + request_id,
        choices=sum(part.n for part in prepared),
        prompt_tokens=sum(part.readings[0].counted_prompt_tokens for part in prepared),
        values={},
    )
    return await answer_batch(services, request, prepared, head)


async def _tail(services: Services, prepared: Prepared, flight: Flight, stream: Stream) -> bytes:
    """The end of a stream, when it is there."""
    try:
        await flight.wait()
    except EngineError as error:
        services.metrics.stream_failures += 1
        logger.warning("stream %s broke on %s: %s", prepared.job.request_id, flight.workers, error)
        return stream.fail(in_stream(error))
    usage = account(services, prepared, flight)
    own = usage_of_choices(flight, usage)
    return stream.end(prepared.n, usage if prepared.include_usage else None, own)


def _head(surface: Surface, prepared: Prepared) -> Head:
    return Head(
        id=surface.id_prefix + prepared.job.request_id,
        created=int(time.time()),
        model=prepared.job.model,
        choices=prepared.n,
        prompt_tokens=prepared.readings[0].counted_prompt_tokens,
        details=prepared.details,
        strict_vendor=prepared.strict_vendor,
        values=prepared.values,
    )
