"""A worker whose every byte a test decides: for what no real one does on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class RawWorker:
    """Answers the n-th request with the n-th answer; a connection serves many."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        """(path, body) of each request."""
        self.raw: list[bytes] = []
        """The bodies as they came."""
        self.connections = 0
        self.asked = asyncio.Event()
        """Set when the first request is in."""
        self.left = asyncio.Event()
        """Set when a client has closed a connection."""
        self.url = ""
        self.tasks: list[asyncio.Task[None]] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        watch = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                path = head.split(b" ")[1].decode()
                self.requests.append((path, msgspec.json.decode(body)))
                self.raw.append(body)
                self.asked.set()
                answer = self.answers.pop(0)
                watch = asyncio.create_task(self._watch(reader))
                await answer(writer, body)
                watch.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            if watch is not None:
                watch.cancel()
            writer.close()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        while not (reader.at_eof() or reader.exception()):  # noqa: ASYNC110 - a reader has no such event
            await asyncio.sleep(0.01)
        self.left.set()


@asynccontextmanager
async def running(*answers: Answer) -> AsyncIterator[RawWorker]:
    worker = RawWorker(*answers)
    server = await asyncio.start_server(worker.accept, "127.0.0.1", 0)
    worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield worker
    finally:
        server.close()
        for task in worker.tasks:
            task.cancel()
        await asyncio.gather(*worker.tasks, return_exceptions=True)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(payload: Any) -> bytes:
    data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return b"data: " + data + b"\n\n"


def tokens(*ids: int, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "token_ids": list(ids), "finish_reason": finish}]}


def stream(*payloads: Any) -> Answer:
    """A whole, well-ended event stream."""

    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        data = SSE_HEAD + b"".join(chunk(event(payload)) for payload in payloads)
        writer.write(data + chunk(event(b"[DONE]")) + b"0\r\n\r\n")
        await writer.drain()

    return answer


def broken_stream(*payloads: Any) -> Answer:
    """A stream that loses its connection after these events."""

    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(SSE_HEAD + b"".join(chunk(event(payload)) for payload in payloads))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    return answer


def endless_stream(*payloads: Any) -> Answer:
    """A stream that says no more after these events, until its client leaves."""

    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(SSE_HEAD + b"".join(chunk(event(payload)) for payload in payloads))
        await silence(writer, body)

    return answer


async def silence(writer: asyncio.StreamWriter, body: bytes) -> None:
    """No answer, the connection left open."""
    await writer.drain()
    await asyncio.sleep(60)


def status(code: int, body: bytes = b"") -> Answer:
    async def answer(writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (code, len(body), body))
        await writer.drain()

    return answer


async def hang_up(writer: asyncio.StreamWriter, body: bytes) -> None:
    """No answer, the connection closed."""
    writer.transport.abort()
