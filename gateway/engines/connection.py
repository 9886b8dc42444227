"""HTTP/1.1 to one worker over pooled raw connections.

aiohttp's client costs about as much a chunk as everything else on the stream path together, so the
upstream side is an `asyncio.Protocol` around httptools' response parser: a read from the worker is
parsed and delivered inside `data_received`, with no coroutine in between.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

MAX_IDLE_CONNECTIONS = 512
CONNECT_TIMEOUT_SECONDS = 5.0
SILENCE_SECONDS = 5.0
"""How long an exchange with a worker that has been taken out may stay without a byte."""


_TCP_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _TCP_OPTIONS.items()
        if hasattr(socket, name)
    ),
)
"""A host that went without a word (power, network) is noticed within 25 s."""


class ConnectionLostError(ConnectionError):
    """The worker closed the connection, or what it sent was not HTTP.

    `received` says whether any byte of a response had come.
    """

    def __init__(self, message: str, *, received: bool) -> None:
        super().__init__(message)
        self.received = received


class ResponseReceiver(Protocol):
    """Called inside `data_received`: must not block."""

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Status line and headers are in; header names are lower case."""
        ...

    def on_body(self, data: bytes) -> None:
        """May still be called within the read in which the receiver gave up its connection."""
        ...

    def on_read_end(self) -> None:
        """Everything that one read brought has been delivered."""
        ...

    def on_complete(self) -> None: ...

    def on_lost(self, error: ConnectionLostError) -> None:
        """The connection went before the response was complete. Not called after `abort`."""
        ...


class HttpConnection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    on_body: Callable[[bytes], None]
    """The receiver's own, which the parser calls with nothing in between."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._receiver: ResponseReceiver | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: dict[bytes, bytes] = {}
        self._received = False
        self._paused = False
        self._keep_alive = False
        self._last_read = 0.0

    def send(self, head: bytes, body: Sequence[bytes], receiver: ResponseReceiver) -> None:
        """Start an exchange; `body` pieces are written as they are."""
        assert self._transport is not None
        self._receiver = receiver
        self.on_body = receiver.on_body
        self._parser = httptools.HttpResponseParser(self)
        self._headers = {}
        self._received = self._keep_alive = False
        self._last_read = self._pool.loop.time()
        self._pool.busy.add(self)
        self._transport.writelines((head, *body))

    def pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    def lose_if_silent(self, seconds: float) -> None:
        """Fail an exchange in which nothing has come for that long."""
        if self._pool.loop.time() - self._last_read >= seconds:
            self._lose(f"nothing came for {seconds:g} s from a worker that is down")

    def abort(self) -> None:
        """Drop the exchange and the connection; the worker sees a client that left."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        for level, option, value in KEEP_ALIVE:
            sock.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        parser, receiver = self._parser, self._receiver
        if parser is None or receiver is None:
            self.abort()
            return
        self._received = True
        self._last_read = self._pool.loop.time()
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(f"unreadable response: {error}")
            return
        receiver.on_read_end()
        if self._receiver is None:
            self._recycle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        self._lose(f"connection lost: {exc}" if exc else "connection closed")

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._receiver is not None and self._parser is not None:
            self._receiver.on_head(self._parser.get_status_code(), self._headers)

    def on_message_complete(self) -> None:
        receiver, self._receiver = self._receiver, None
        # Only within this callback does the parser know it.
        self._keep_alive = self._parser is not None and self._parser.should_keep_alive()
        if receiver is not None:
            receiver.on_complete()

    def _recycle(self) -> None:
        self._parser = None
        self.on_body = _ignore
        self._pool.busy.discard(self)
        if self._transport is None or self._transport.is_closing():
            return
        self.resume()
        if self._keep_alive:
            self._pool.give_back(self)
        else:
            self._transport.close()

    def _lose(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if self._transport is not None:
            self._transport.abort()
        if receiver is not None:
            receiver.on_lost(ConnectionLostError(reason, received=self._received))

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()


def _ignore(data: bytes) -> None:
    """An idle connection keeps nothing of its last exchange."""


class ConnectionPool:
    """Connections to one origin, most recently used first."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._netloc = parts.netloc.rpartition("@")[2]
        self.loop = asyncio.get_running_loop()
        self.busy: set[HttpConnection] = set()
        """Connections with an exchange under way."""
        self._idle: deque[HttpConnection] = deque()
        self.closed = False
        """The worker has been taken out."""

    def post_head(self, path: str, content_length: int, headers: Mapping[str, str]) -> bytes:
        """Request line and headers of a JSON POST."""
        lines = [
            f"POST {self._prefix}{path} HTTP/1.1",
            f"Host: {self._netloc}",
            "Content-Type: application/json",
            f"Content-Length: {content_length}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"

    def idle_connection(self) -> HttpConnection | None:
        """A connection that was used before; its worker may have closed it without our knowing yet."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def new_connection(self) -> HttpConnection:
        """Raises OSError (TimeoutError included)."""
        if self.closed:
            raise ConnectionError("the worker has been taken out")
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            _, connection = await self.loop.create_connection(
                lambda: HttpConnection(self), self._host, self._port, ssl=self._ssl
            )
        return connection

    def give_back(self, connection: HttpConnection) -> None:
        if len(self._idle) < MAX_IDLE_CONNECTIONS and not self.closed:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: HttpConnection) -> None:
        self.busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close what is idle, and what is in use as soon as its exchange is over or has gone silent.

        A frozen worker keeps its connections open and never says another word.
        """
        self.closed = True
        self._lose_silent()
        for connection in list(self._idle):
            connection.abort()
        self._idle.clear()

    def _lose_silent(self) -> None:
        for connection in list(self.busy):
            connection.lose_if_silent(SILENCE_SECONDS)
        if self.busy:
            self.loop.call_later(SILENCE_SECONDS / 10, self._lose_silent)
