"""One streamed exchange with a worker: connect, send, follow the event stream, say how it ended."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.engines.base import EngineError
from gateway.engines.connection import ConnectionLostError, ConnectionPool, HttpConnection
from gateway.engines.sse import EventTooLargeError, SseDecoder
from gateway.engines.worker_message import clean

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_ERROR_BODY_BYTES = 256 * 1024
OF_THE_WORKER = (401, 403, 407, 408, 429)
"""4xx that speak of the worker and not of the request: another one may take it."""


class _ErrorDetail(msgspec.Struct):
    message: str = ""
    param: str | None = None
    code: int | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail | str | None = None
    detail: Any = None


class Exchange(ABC):
    """Follows one response; subclasses say what an event means.

    Status other than 200 becomes an EngineError with the worker's message. The exchange is over when
    `done` is; `started` says that the client may have seen output, so that nobody else may take over.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._head: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._done.add_done_callback(_retrieve)
        self._connection: HttpConnection | None = None
        self._status = 0
        self._error_body = b""
        self._parts: list[bytes] = []
        """What a read has brought so far."""
        self.on_body: Callable[[bytes], None] = self._parts.append
        self.flush: Callable[[], None] = _nothing
        """Called when all events of a read have been handled."""

    @property
    def done(self) -> asyncio.Future[None]:
        return self._done

    async def open(
        self,
        pool: ConnectionPool,
        path: str,
        body: Sequence[bytes],
        headers: Mapping[str, str],
        *,
        once: bool = False,
    ) -> None:
        """Send; returns when the worker answered 200. Raises EngineError.

        A reused connection that dies before any byte of the response says nothing about the worker (its
        keep-alive ran out): the request goes out again, on a fresh connection, unless it may only be sent
        `once`.
        """
        head = pool.post_head(path, sum(map(len, body)), headers)
        connection = pool.idle_connection()
        if connection is not None:
            try:
                await self._attempt(connection, head, body)
                return
            except ConnectionLostError as error:
                if error.received or once or pool.closed:
                    raise EngineError(str(error), retryable=True, lost=True) from error
                self._head = asyncio.get_running_loop().create_future()
        try:
            connection = await pool.new_connection()
        except OSError as error:
            message = f"cannot reach the worker: {str(error) or type(error).__name__}"
            raise EngineError(message, retryable=True, lost=True, unsent=True) from error
        try:
            await self._attempt(connection, head, body)
        except ConnectionLostError as error:
            raise EngineError(f"the worker went away: {error}", retryable=True, lost=True) from error

    async def _attempt(self, connection: HttpConnection, head: bytes, body: Sequence[bytes]) -> None:
        self._connection = connection
        connection.send(head, body, self)
        try:
            self.handle_sent()
            await self._head
        except (ConnectionLostError, EngineError):
            raise
        except BaseException:
            connection.abort()
            raise

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """End the generation early, for whatever reason; `done` resolves."""
        if not self._done.done():
            self._release_connection(abort=True)
            self._done.set_result(None)

    def cancel(self) -> None:
        """The waiter has gone (and has taken `done` with it): let the connection go as well."""
        self._release_connection(abort=True)

    # what an event means

    @abstractmethod
    def handle_data(self, data: bytes) -> None:
        """What a read brought of the answer. Raises EngineError or msgspec.DecodeError: it is dropped."""

    def handle_sent(self) -> None:  # noqa: B027 - most exchanges have nothing to do then
        """The request is on its way; twice when a reused connection died."""

    def check_complete(self) -> str | None:
        """Why a response that ended cleanly is nevertheless not whole, or None."""
        return None

    # ResponseReceiver

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status = status
        if status == 200 and not self._head.done():
            self._head.set_result(None)

    def on_read_end(self) -> None:
        parts = self._parts
        if parts:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if self._connection is None:
                return
            if self._status == 200:
                self._handle(data)
            else:
                self._error_body = (self._error_body + data)[:MAX_ERROR_BODY_BYTES]
        self.flush()

    def _handle(self, data: bytes) -> None:
        try:
            self.handle_data(data)
        except EngineError as error:
            self._fail(error)
        except (msgspec.DecodeError, EventTooLargeError, UnicodeDecodeError) as error:
            message = f"the worker sent an event that cannot be read: {error}"
            self._fail(EngineError(message, retryable=True))
        except Exception as error:
            # Escaping into the connection would look like a worker that does not speak HTTP.
            logger.exception("a stream failed inside the gateway")
            # Most likely nonsense from this worker, such as a choice that was not asked for.
            self._fail(EngineError(f"internal error: {type(error).__name__}", retryable=True))

    def on_complete(self) -> None:
        self.on_read_end()
        if self._status != 200:
            self._reject()
            return
        reason = self.check_complete()
        if reason is not None:
            self._fail(EngineError(reason, retryable=True))
        elif not self._done.done():
            self._release_connection(abort=False)
            self._done.set_result(None)

    def on_lost(self, error: ConnectionLostError) -> None:
        if not self._head.done():
            self._head.set_exception(error)
        else:
            self._fail(EngineError(f"the worker went away: {error}", retryable=True, lost=True))

    def _reject(self) -> None:
        error = engine_error(self._status, self._error_body)
        if not self._head.done():
            self._head.set_exception(error)
        self._release_connection(abort=False)

    def _fail(self, error: EngineError) -> None:
        self._release_connection(abort=True)
        if not self._head.done():
            self._head.set_exception(error)
        elif not self._done.done():
            self._done.set_exception(error)

    def _release_connection(self, *, abort: bool) -> None:
        connection, self._connection = self._connection, None
        if abort and connection is not None:
            connection.abort()


class EventExchange(Exchange):
    """Follows an event stream."""

    def __init__(self) -> None:
        super().__init__()
        self._sse = SseDecoder()

    def handle_data(self, data: bytes) -> None:
        for payload in self._sse.feed(data):
            self.handle_event(payload)

    @abstractmethod
    def handle_event(self, payload: bytes) -> None:
        """One event's data. Raises as `handle_data` does."""


class WholeExchange(Exchange):
    """An answer that is not streamed; `body` is whole when `done` is."""

    def __init__(self) -> None:
        super().__init__()
        self._whole: list[bytes] = []
        self._size = 0

    def handle_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            message = f"the worker's answer is larger than {MAX_ANSWER_BYTES} bytes"
            raise EngineError(message, retryable=True)
        self._whole.append(data)

    async def fetch(
        self, pool: ConnectionPool, path: str, body: Sequence[bytes], headers: Mapping[str, str]
    ) -> bytes:
        """Send, and wait for the whole answer. Raises EngineError; when cancelled, the worker is told."""
        try:
            await self.open(pool, path, body, headers)
            await self.done
        except asyncio.CancelledError:
            self.cancel()
            raise
        return b"".join(self._whole)


def engine_error(status: int, body: bytes) -> EngineError:
    """A worker's error answer, whatever its shape (vLLM's nested body, FastAPI's detail, plain text)."""
    message, param = "", None
    try:
        parsed = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.DecodeError:
        message = body.decode("utf-8", "replace")
    else:
        if isinstance(parsed.error, _ErrorDetail):
            message, param = parsed.error.message, parsed.error.param
        elif parsed.error is not None:
            message = parsed.error
        elif parsed.detail is not None:
            message = str(parsed.detail)
    message = clean(message) or f"the worker answered {status}"
    retryable = status >= 500 or status in OF_THE_WORKER
    return EngineError(message, status=status, param=param, retryable=retryable)


def _nothing() -> None:
    pass


def _retrieve(future: asyncio.Future[None]) -> None:
    """Mark a failure as seen: a request that nobody waits for any more must not log a traceback."""
    if not future.cancelled():
        future.exception()
