"""Clients that do not speak proper HTTP, or hang up in odd ways."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.api import connection
from tests.gateway.api.conftest import MODEL, Gateway, gateway
from tests.gateway.raw_worker import endless_stream, stream, tokens

CHAT = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
SAY = stream(tokens(5, finish="stop"))


def post(body: bytes = CHAT, *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    head = b"\r\n".join([b"POST %b HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *headers])
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def connected(gw: Gateway) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = gw.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def exchange(gw: Gateway, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send, and read the answer: status, headers, body."""
    async with connected(gw) as (reader, writer):
        writer.write(data)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        first, *lines = head[:-4].decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers["content-length"]))
    return int(first.split()[1]), headers, body


BAD_DEFLATE = post(b"\xff" * 20, b"Content-Encoding: deflate", b"Content-Type: application/json")
MALFORMED = {
    "no HTTP at all": (b"hello there, secret\r\n\r\n", 400),
    "an unknown version": (b"GET / HTTP/9\r\n\r\n", 400),
    "no version": (b"GET / secret\r\n\r\n", 400),
    "a bad header name": (b"GET / HTTP/1.1\r\nHost: x\r\nbad header: secret\r\n\r\n", 400),
    "a bad content length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    "length and chunks": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a bad chunk": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n", 400),
    "a header that is too large": (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    "too many headers": (b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 500 + b"\r\n", 400),
    "a line that is too long": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    "a body that is not deflated": (BAD_DEFLATE, 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03secret\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_not_http_is_one_log_line_and_the_usual_error_body(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, expected = MALFORMED[name]
    async with gateway([]) as gw:
        with caplog.at_level(logging.WARNING):
            status, headers, body = await exchange(gw, data)
    error = msgspec.json.decode(body)["error"]
    assert status == expected
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert headers["content-type"] == "application/json"
    assert len(headers["x-request-id"]) == 24
    assert len(caplog.records) <= 1
    assert not any(record.exc_info for record in caplog.records)
    assert b"secret" not in body
    assert "secret" not in caplog.text


async def test_malformed_requests_are_counted() -> None:
    async with gateway([]) as gw:
        await exchange(gw, b"\x00\r\n\r\n")
        assert gw.services.metrics.requests == {("malformed", 400): 1}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_only_stops_sending_gets_its_answer(streamed: bool) -> None:
    body = CHAT[:-1] + b',"stream":true}' if streamed else CHAT
    async with gateway([SAY]) as gw, connected(gw) as (reader, writer):
        writer.write(post(body))
        writer.write_eof()
        received = await asyncio.wait_for(reader.read(), 5)
    assert received.startswith((b"HTTP/1.1 200", connection.PROBE + b"HTTP/1.1 200"))
    assert (b"[DONE]" in received) if streamed else (b'"finish_reason":"stop"' in received)


async def test_a_client_that_stops_sending_before_its_body_is_whole_is_let_go() -> None:
    async with gateway([]) as gw, connected(gw) as (reader, writer):
        writer.write(post()[:-5])
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_client_that_goes_while_nothing_has_been_sent_stops_the_worker() -> None:
    async with gateway([endless_stream(tokens())]) as gw:
        async with connected(gw) as (_, writer):
            writer.write(post())
            await gw.workers[0].asked.wait()
        await asyncio.wait_for(gw.workers[0].left.wait(), 5)


async def test_a_connection_that_never_asks_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    async with gateway([]) as gw, connected(gw) as (reader, writer):
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_body_that_does_not_come_is_a_408() -> None:
    async with gateway([], body_seconds=0.05) as gw:
        status, _, body = await exchange(gw, post()[:-5])
    assert (status, msgspec.json.decode(body)["error"]["code"]) == (408, "request_timeout")


async def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    async with gateway([], idle_seconds=0.05) as gw, connected(gw) as (reader, writer):
        writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        received = await asyncio.wait_for(reader.read(), 5)
    assert received.startswith(b"HTTP/1.1 200")


async def test_a_body_may_be_compressed() -> None:
    packed = zlib.compress(CHAT)
    async with gateway([SAY]) as gw:
        headers = {"Content-Encoding": "deflate", "Content-Type": "application/json"}
        response = await gw.post("/v1/chat/completions", data=packed, headers=headers)
        assert response.status == 200


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/vnd.api+json", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
async def test_a_body_must_be_called_json(kind: str, status: int) -> None:
    async with gateway([SAY]) as gw:
        response = await gw.post("/v1/chat/completions", data=CHAT, headers={"Content-Type": kind})
        assert response.status == status
        if status == 415:
            error: dict[str, Any] = (await response.json())["error"]
            assert error["code"] == "unsupported_media_type"


async def test_a_body_need_not_be_called_anything() -> None:
    async with gateway([SAY]) as gw, connected(gw) as (reader, writer):
        writer.write(post())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
