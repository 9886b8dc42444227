"""One generation request from body to answer, the same for chats and plain completions."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from aiohttp import web

from gateway.api.errors import body_of, in_stream
from gateway.api.fields import Field, read_fields
from gateway.api.head import Head
from gateway.api.relay import relay
from gateway.api.services import Services
from gateway.api.stream_response import StreamRenderer, stream_answer
from gateway.api.usage import Usage, usage_of
from gateway.engines.base import EngineError
from gateway.serving.errors import bad_request, model_not_found, unavailable
from gateway.serving.generation import Emitter
from gateway.serving.inflight import InFlight
from gateway.serving.job import Prepared
from gateway.serving.prepare import Preparer
from gateway.serving.request import Fields
from gateway.serving.tool_checks import check_tool_calls
from parsers.base import OutputParser

logger = logging.getLogger(__name__)

_random = random.Random(secrets.randbits(128))
"""For ids: unique, not secret; the system's generator costs a call into the kernel each time."""


class Stream(StreamRenderer, Emitter, Protocol):
    def end(self, choices: int, usage: Usage | None) -> bytes: ...

    def fail(self, error_body: bytes) -> bytes: ...


class Whole(Emitter, Protocol):
    def body(self, usage: Usage, parsers: Sequence[OutputParser]) -> bytes: ...


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """What sets one generating endpoint apart from another."""

    path: str
    table: Mapping[str, Field]
    required: str
    """The field that holds the input."""
    id_prefix: str
    prepare: Callable[[Preparer, Fields, str, float], Awaitable[Prepared]]
    stream: Callable[[Head], Stream]
    whole: Callable[[Head], Whole]


def generating(
    surface: Surface, services: Services
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The aiohttp handler of a surface."""

    async def handle(request: web.Request) -> web.StreamResponse:
        started = asyncio.get_running_loop().time()
        if services.draining:
            raise unavailable("The gateway is shutting down.", "shutting_down")
        body = await request.read()
        fields = read_fields(body, surface.table, strict=services.settings.strict)
        check_target(services, fields, surface.required)
        request_id = f"{_random.getrandbits(96):024x}"
        if services.fleet.only_relays(fields.values["model"]):
            return await relay(services, request, surface.path, body, fields, request_id)
        if fields.refusal is not None:
            raise fields.refusal
        prepared = await surface.prepare(services.preparer, fields, request_id, started)
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

    flight = await services.dispatcher.run(job, services.preparer.generation(prepared, fresh))
    flight.close()
    assert flight.generation is not None
    parsers = [choice.parser for choice in flight.generation.choices]
    body = answer[0].body(_usage(services, prepared, flight), parsers)
    return web.Response(body=body, content_type="application/json", headers=_headers(job.request_id))


async def _stream(
    services: Services, request: web.Request, surface: Surface, prepared: Prepared
) -> web.StreamResponse:
    job = prepared.job
    answer: list[Stream] = []

    def fresh() -> Stream:
        answer[:] = [surface.stream(_head(surface, prepared))]
        return answer[0]

    flight = await services.dispatcher.open(job, services.preparer.generation(prepared, fresh))
    stream = answer[0]

    async def tail() -> bytes:
        try:
            await flight.wait()
        except EngineError as error:
            services.metrics.stream_failures += 1
            logger.warning("stream %s broke on %s: %s", job.request_id, flight.workers, error)
            services.fleet.report_failure(flight.placement.target.worker, error)
            return stream.fail(body_of(in_stream(error)))
        usage = _usage(services, prepared, flight)
        return stream.end(prepared.n, usage if prepared.include_usage else None)

    try:
        return await stream_answer(request, _headers(job.request_id), stream, flight, tail)
    finally:
        flight.close()


def _head(surface: Surface, prepared: Prepared) -> Head:
    return Head(
        id=surface.id_prefix + prepared.job.request_id,
        created=int(time.time()),
        model=prepared.job.model,
        choices=prepared.n,
        prompt_tokens=prepared.readings[0].counted_prompt_tokens,
        details=prepared.details,
        values=prepared.values,
    )


def _usage(services: Services, prepared: Prepared, flight: InFlight) -> Usage:
    reading = prepared.reading(flight.pool)
    usage = usage_of(flight, reading.counted_prompt_tokens)
    assert flight.generation is not None
    check_tool_calls(prepared.job.request_id, reading.options, flight.generation, services.metrics)
    services.metrics.prompt_tokens += usage.prompt_tokens
    services.metrics.cached_tokens += usage.prompt_tokens_details.cached_tokens
    if logger.isEnabledFor(logging.INFO):
        logger.info(
            "request %s on %s: %d prompt tokens, %d cached, %d expected, %d output tokens",
            prepared.job.request_id,
            flight.workers,
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            flight.overlap_tokens,
            usage.completion_tokens,
        )
    return usage


def _headers(request_id: str) -> dict[str, str]:
    return {"X-Request-Id": request_id}
