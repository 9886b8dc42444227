"""A completion of several prompts: one request to a worker for each, one answer to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from gateway.api.accounting import account, settle
from gateway.api.completion_render import CompletionStream, CompletionWhole, completion_body
from gateway.api.errors import as_request_error, in_stream
from gateway.api.head import Head
from gateway.api.keep_alive import KeepAlive
from gateway.api.request_id import headers_of
from gateway.api.services import Services
from gateway.api.stream_response import EventStreamResponse, stream_answer
from gateway.api.usage import Usage, sum_of
from gateway.engines.base import EngineError
from gateway.serving.errors import RequestError, bad_request
from gateway.serving.flight import Flight
from gateway.serving.job import Prepared
from gateway.serving.request import Fields
from gateway.serving.token_watch import TokenDetail
from parsers.base import OutputEvent
from router.messages import NoWorkerError

Result = TypeVar("Result")

MAX_PROMPTS = 1024
AT_ONCE = 64
"""Prompts of one request that are with workers at the same time."""


def split_prompts(fields: Fields) -> list[Fields]:
    """The request for each of its prompts; one when there is no list of them. Raises RequestError."""
    prompt = fields.values["prompt"]
    if isinstance(prompt, str) or not prompt or not isinstance(prompt[0], str | list):
        return [fields]
    if len(prompt) > MAX_PROMPTS:
        raise bad_request(f"`prompt` must have at most {MAX_PROMPTS} prompts, has {len(prompt)}.", "prompt")
    return [msgspec.structs.replace(fields, values=fields.values | {"prompt": one}) for one in prompt]


async def answer_batch(
    services: Services, request: web.Request, parts: Sequence[Prepared], head: Head
) -> web.StreamResponse:
    """`head` is that of the whole answer; choices are numbered prompt after prompt."""
    answer = _stream if parts[0].stream else _whole
    return await answer(services, request, parts, head)


async def _whole(
    services: Services, request: web.Request, parts: Sequence[Prepared], head: Head
) -> web.StreamResponse:
    async def run(number: int, prepared: Prepared) -> tuple[list[dict[str, Any]], Usage]:
        answer: list[CompletionWhole] = []

        def fresh() -> CompletionWhole:
            own = msgspec.structs.replace(head, choices=prepared.n, values=prepared.values)
            answer[:] = [CompletionWhole(own)]
            return answer[0]

        flight = await services.flights.run(prepared.job, services.preparer.generation(prepared, fresh))
        flight.close()
        return answer[0].choices(number * prepared.n), account(services, prepared, flight)

    answers = await _all([partial(run, number, prepared) for number, prepared in enumerate(parts)])
    choices = [choice for own, _ in answers for choice in own]
    body = completion_body(head, choices, sum_of([usage for _, usage in answers]))
    return web.Response(body=body, content_type="application/json", headers=headers_of(request))


class _Part:
    """Emitter of one prompt's choices into the stream of all."""

    def __init__(self, stream: CompletionStream, first: int, prepared: Prepared) -> None:
        self._stream = stream
        self._first = first
        self._choices = range(first, first + prepared.n)
        self._echoed: str = prepared.values.get("echoed", "")
        self.flush = stream.flush

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        self._stream.emit(self._first + index, events)

    def on_prompt(self, tokens: Sequence[TokenDetail]) -> None:
        self._stream.echo_with(self._choices, self._echoed, tokens)

    def on_token(self, index: int, token: TokenDetail) -> None:
        self._stream.on_token(self._first + index, token)


class _Flights:
    """All that are under way, as one flow."""

    def __init__(self) -> None:
        self._open: set[Flight] = set()
        self._paused = False

    def add(self, flight: Flight) -> None:
        self._open.add(flight)
        if self._paused:
            flight.pause()

    def discard(self, flight: Flight) -> None:
        self._open.discard(flight)

    def pause(self) -> None:
        self._paused = True
        for flight in self._open:
            flight.pause()

    def resume(self) -> None:
        self._paused = False
        for flight in self._open:
            flight.resume()


async def _stream(
    services: Services, request: web.Request, parts: Sequence[Prepared], head: Head
) -> web.StreamResponse:
    stream, flights, begun = CompletionStream(head), _Flights(), asyncio.Event()

    async def run(number: int, prepared: Prepared) -> Usage:
        first = number * prepared.n
        for index in range(prepared.n if prepared.job.prompt_logprobs is None else 0):
            stream.echo(first + index, prepared.values.get("echoed", ""))
        part = _Part(stream, first, prepared)
        generation = services.preparer.generation(prepared, lambda: part)
        flight = await services.flights.open(prepared.job, generation)
        flights.add(flight)
        begun.set()
        try:
            await flight.wait()
            return account(services, prepared, flight)
        finally:
            flights.discard(flight)
            flight.close()
            settle(prepared, flight)

    response = EventStreamResponse(request, headers_of(request))
    keep_alive = KeepAlive(response, services.settings.sse_keep_alive_seconds)
    everything = asyncio.create_task(
        _all([partial(run, number, prepared) for number, prepared in enumerate(parts)])
    )
    beginning = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({everything, beginning}, return_when=asyncio.FIRST_COMPLETED)
        if everything.done() and not await keep_alive.committed():
            everything.result()

        async def tail() -> bytes:
            try:
                usages = await everything
            except (RequestError, NoWorkerError, EngineError) as error:
                services.metrics.stream_failures += 1
                return stream.fail(
                    in_stream(error) if isinstance(error, EngineError) else as_request_error(error)
                )
            return stream.end(head.choices, sum_of(usages) if parts[0].include_usage else None)

        return await stream_answer(response, stream, flights, tail, keep_alive)
    finally:
        keep_alive.close()
        beginning.cancel()
        everything.cancel()
        await asyncio.wait({everything})


async def _all(runs: Sequence[Callable[[], Coroutine[Any, Any, Result]]]) -> list[Result]:
    """Results in order; a failure ends all."""
    places = asyncio.Semaphore(AT_ONCE)

    async def in_turn(run: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        async with places:
            return await run()

    tasks = [asyncio.create_task(in_turn(run)) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
