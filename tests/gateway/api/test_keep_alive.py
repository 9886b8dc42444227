"""Streams that have nothing to say for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.api.conftest import gateway
from tests.gateway.api.test_server import USAGE, error_of
from tests.gateway.raw_worker import SSE_HEAD, Answer, chunk, event, status, stream, tokens

COMMENT = b": keep-alive\n\n"
SOON = 0.03


def after(gate: asyncio.Event, answer: Answer, first: bytes = b"") -> Answer:
    """An answer that waits for the test, with some of it before."""

    async def wait(writer: Any, body: bytes) -> None:
        writer.write(first)
        await gate.wait()
        await answer(writer, body)

    return wait


async def rest_after_comments(response: Any, gate: asyncio.Event, comments: int = 3) -> bytes:
    data = b""
    while data.count(COMMENT) < comments:
        data += await asyncio.wait_for(response.content.readany(), 10)
    gate.set()
    return data + await response.read()


async def test_a_stream_without_an_event_is_committed_by_a_comment_and_goes_on_as_ever() -> None:
    gate = asyncio.Event()
    async with gateway(
        [after(gate, stream(tokens(65), tokens(finish="stop"), USAGE))], sse_keep_alive_seconds=SOON
    ) as gw:
        response = await gw.chat(stream=True)
        data = await rest_after_comments(response, gate)
    assert response.status == 200
    assert response.headers["X-Request-Id"]
    parts = data.replace(COMMENT, b"").split(b"\n\n")
    assert all(part.startswith(b"data: {") for part in parts[:-2])
    assert parts[-2:] == [b"data: [DONE]", b""]


async def test_a_failure_after_that_is_an_error_frame() -> None:
    gate = asyncio.Event()
    async with gateway(
        [after(gate, status(400, b'{"error":{"message":"no"}}'))], sse_keep_alive_seconds=SOON
    ) as gw:
        data = await rest_after_comments(await gw.chat(stream=True), gate)
        assert gw.reservations == 0
    *_, error, done, end = data.split(b"\n\n")
    assert error.startswith(b'data: {"error":{"message":"no"')
    assert (done, end) == (b"data: [DONE]", b"")


async def test_comments_fill_a_silence_between_events() -> None:
    gate = asyncio.Event()

    async def rest(writer: Any, body: bytes) -> None:
        writer.write(b"".join(chunk(event(e)) for e in (tokens(66), tokens(finish="stop"), USAGE, b"[DONE]")))
        writer.write(b"0\r\n\r\n")

    worker = after(gate, rest, SSE_HEAD + chunk(event(tokens(65))))
    async with gateway([worker], sse_keep_alive_seconds=SOON) as gw:
        data = await rest_after_comments(await gw.chat(stream=True), gate)
    assert data.startswith(b"data: ")
    assert data.replace(COMMENT, b"").count(b'content":') == 4  # of the role, and reasoning with its end


@pytest.mark.parametrize("seconds", [0, 30])
async def test_a_failure_before_that_is_a_status(seconds: float) -> None:
    async with gateway([status(400, b'{"error":{"message":"no"}}')], sse_keep_alive_seconds=seconds) as gw:
        response = await gw.chat(stream=True)
        assert (response.status, (await error_of(response))["message"]) == (400, "no")


async def test_a_client_that_leaves_while_it_is_silent_frees_the_worker() -> None:
    async with gateway([after(asyncio.Event(), stream())], sse_keep_alive_seconds=SOON) as gw:
        response = await gw.chat(stream=True)
        await response.content.readany()
        response.close()
        await asyncio.wait_for(gw.workers[0].left.wait(), 10)


async def test_a_relayed_stream_is_kept_alive_too() -> None:
    gate = asyncio.Event()
    async with gateway(
        [after(gate, stream({"choices": []}))], endpoint="openai", sse_keep_alive_seconds=SOON
    ) as gw:
        data = await rest_after_comments(await gw.chat(stream=True), gate)
    assert data.endswith(b'data: {"choices":[]}\n\ndata: [DONE]\n\n')
