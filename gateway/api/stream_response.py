"""A streamed answer: headers and first event in one write, then straight to the transport."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, cast

from aiohttp import HttpVersion11, web
from aiohttp.http import StreamWriter

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.02
AIOHTTP_DRAIN_BYTES = 0x10000


_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Flow(Protocol):
    """What can be held up while the client reads slowly."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class EventStreamResponse(web.StreamResponse):
    """Keeps its headers until the first write, so that they share a packet with the first event."""

    _send_headers_immediately = False

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**_HEADERS, **headers})
        self.request = request
        if request.version < HttpVersion11:
            self.force_close()  # only the connection's end tells such a client where the stream ends

    def prepare_early(self) -> None:
        """Have the headers ready before there is anything to send; `withdraw` makes room for others."""
        with contextlib.suppress(StopIteration):
            # Nothing is sent, so that the coroutine has nothing to wait for.
            self.prepare(self.request).send(None)

    def withdraw(self) -> None:
        """Another response is sent instead; this one must not have been written to."""
        writer = cast(StreamWriter, self.request.writer)
        writer.chunked = False
        writer.length = None


class ClientWriter:
    """Writes a stream's later bytes to aiohttp's transport, and pauses the worker for a slow client.

    aiohttp's own writer costs a coroutine and a drain a chunk. The transport tells aiohttp's protocol
    when its buffer is over the high-water mark; while it is, `flow` stays paused.
    """

    def __init__(self, request: web.Request, flow: Flow) -> None:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        self._transport = transport
        self._protocol = request.protocol
        self._chunked = request.version >= (1, 1)
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._poll: asyncio.TimerHandle | None = None
        self.idle = 0
        """Counted up by who watches for silence."""

    def write(self, data: bytes) -> None:
        self.idle = 0
        transport = self._transport
        if transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if self._poll is None and self._protocol.writing_paused:
            self._flow.pause()
            self._watch()

    def comment(self, data: bytes) -> None:
        """Write what means nothing, unless the client has enough to read."""
        if not self._protocol.writing_paused:
            self.write(data)

    def close(self) -> None:
        """No timer outlives the stream."""
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None

    def _watch(self) -> None:
        if self._protocol.writing_paused and not self._transport.is_closing():
            self._poll = self._loop.call_later(POLL_SECONDS, self._watch)
        else:
            self._poll = None
            self._flow.resume()


class KeepAlive(Protocol):
    """What keeps a silent stream alive."""

    writer: ClientWriter | None

    async def committed(self) -> bool: ...

    def close(self) -> None: ...


class StreamRenderer(Protocol):
    """What renders a stream; hands out its bytes by `take` until `write` is set."""

    write: Callable[[bytes], None] | None

    def take(self) -> bytes: ...


async def stream_answer(
    response: EventStreamResponse,
    renderer: StreamRenderer,
    flow: Flow,
    tail: Callable[[], Awaitable[bytes]],
    keep_alive: KeepAlive,
) -> web.StreamResponse:
    """Send a stream whose first event is ready; `tail` waits for the end and gives the last bytes."""
    request = response.request
    await keep_alive.committed()
    await response.prepare(request)
    await _write_first(response, renderer.take(), flow)
    writer = ClientWriter(request, flow)
    renderer.write = writer.write
    keep_alive.writer = writer
    try:
        last = await tail()
        keep_alive.close()
        await response.write_eof(last)
    except Exception:
        # The status has gone out: all that is left to say is that the answer is not whole.
        logger.exception("a stream failed inside the gateway")
        if request.transport is not None:
            request.transport.abort()
    finally:
        renderer.write = None
        writer.close()
    return response


async def _write_first(response: web.StreamResponse, data: bytes, flow: Flow) -> None:
    """aiohttp waits for a slow client when much is written: nothing may pile up meanwhile."""
    much = len(data) >= AIOHTTP_DRAIN_BYTES
    if much:
        flow.pause()
    await response.write(data)
    if much:
        flow.resume()
