"""Bodies of requests under way are bounded together, announced or not; errors carry the request's id."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gateway.api.body import Bodies, Hold, patience_of
from gateway.serving.errors import RequestError
from tests.gateway.api.conftest import MODEL, Gateway, gateway
from tests.gateway.raw_worker import endless_stream, hang_up, status, stream, tokens

BODY = msgspec.json.encode({"model": MODEL, "prompt": [1, 2, 3]})
OK = stream(tokens(5, finish="stop"))


async def post(gw: Gateway, data: Any, **headers: str) -> tuple[int, str | None]:
    headers = {"Content-Type": "application/json"} | headers
    response = await gw.session.post(f"{gw.url}/v1/completions", data=data, headers=headers)
    assert response.headers["X-Request-Id"]
    body = await response.json()
    if response.status == 429:
        assert int(response.headers["Retry-After"]) > 0
    return response.status, body.get("error", {}).get("code")


async def in_pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(BODY), 10):
        yield BODY[start : start + 10]


def held(gw: Gateway) -> int:
    return gw.services.bodies.held


@pytest.mark.parametrize("way", ["announced", "chunked", "compressed"])
async def test_a_body_is_read_and_counted_whatever_way_it_comes(way: str) -> None:
    data: Any = {"announced": BODY, "chunked": in_pieces(), "compressed": zlib.compress(BODY)}[way]
    async with gateway([endless_stream(tokens(5))]) as gw:
        headers = {"Content-Encoding": "deflate"} if way == "compressed" else {}
        asking = asyncio.create_task(post(gw, data, **headers))
        await gw.workers[0].asked.wait()
        assert held(gw) == len(BODY)
        asking.cancel()
        async with asyncio.timeout(5):
            while held(gw):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["announced", "chunked"])
async def test_bodies_that_are_too_large_together_are_refused_with_retry_after(way: str) -> None:
    async with gateway([endless_stream(tokens(5)), OK], inflight_body_bytes=len(BODY) + 5) as gw:
        first = asyncio.create_task(post(gw, BODY))
        await gw.workers[0].asked.wait()
        data: Any = BODY if way == "announced" else in_pieces()
        assert await post(gw, data) == (429, "too_many_bytes")
        first.cancel()
        async with asyncio.timeout(5):
            while held(gw):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert (await post(gw, BODY))[0] == 200
        assert held(gw) == 0


@pytest.mark.parametrize(
    "path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/chat/completions/render"]
)
async def test_bodies_that_nothing_is_generated_for_count_as_well(path: str) -> None:
    async with gateway([endless_stream(tokens(5))], inflight_body_bytes=len(BODY) + 5) as gw:
        first = asyncio.create_task(post(gw, BODY))
        await gw.workers[0].asked.wait()
        assert (await gw.post(path, {"model": MODEL})).status == 429
        first.cancel()
        async with asyncio.timeout(5):
            while held(gw):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert (await gw.post(path, {"model": MODEL})).status == 400
        assert held(gw) == 0


@pytest.mark.parametrize("way", ["announced", "chunked"])
async def test_one_body_over_its_limit_is_a_413(way: str) -> None:
    async with gateway([], max_body_bytes=20) as gw:
        data: Any = BODY if way == "announced" else in_pieces()
        assert await post(gw, data) == (413, "request_too_large")
        assert held(gw) == 0


async def test_a_body_that_is_announced_and_does_not_come_takes_no_room() -> None:
    async with gateway([OK], inflight_body_bytes=200, max_body_bytes=200) as gw:
        host, _, port = gw.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n{")
        async with asyncio.timeout(5):
            while not held(gw):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        assert held(gw) == 1
        assert (await post(gw, BODY))[0] == 200
        writer.close()


def test_one_body_alone_is_never_too_many() -> None:
    bodies = Bodies(10, 100)
    first, second = Hold(bodies), Hold(bodies)
    first.add(50)
    with pytest.raises(RequestError):
        second.add(1)
    first.release()
    second.add(1)
    assert bodies.held == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"X-Stainless-Read-Timeout": "600"}, 600.0),
        ({"X-Stainless-Timeout": "2.5"}, 2.5),
        ({"X-Stainless-Read-Timeout": "NOT_GIVEN"}, None),
        ({"X-Stainless-Read-Timeout": "-1"}, None),
    ],
)
def test_what_clients_say_of_their_patience_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert patience_of(headers) == seconds


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/nowhere"])
async def test_every_error_carries_a_request_id(path: str) -> None:
    async with gateway([status(500)]) as gw:
        response = await gw.post(path, {"model": MODEL, "prompt": "x"})
        assert response.status >= 400
        assert response.headers["X-Request-Id"]


async def test_the_id_of_an_error_is_that_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway([hang_up]) as gw:
        response = await gw.post("/v1/completions", {"model": MODEL, "prompt": "x"})
        assert response.status == 502
        assert f"request {response.headers['X-Request-Id']} failed on w0" in caplog.text
