"""aiohttp's server with the gateway's manners towards clients that do not speak proper HTTP.

Malformed requests get the error body of all others, and one log line without what was sent. A client that
shuts its sending side down after its request (`nc -N`) still gets its answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from gateway.api.errors import error_response
from gateway.api.request_id import answered_id
from gateway.serving.errors import RequestError

logger = logging.getLogger(__name__)

HEAD_SECONDS = 15.0
"""How long a new connection may take to send the head of its first request."""
PROBE_SECONDS = (0.01, 0.05, 0.2, 1.0, 3.0)
"""When to look, after a client's end of sending, whether it has gone altogether."""
PROBE = b"HTTP/1.1 102 Processing\r\n\r\n"
"""An answer before the answer: the system of a client that has gone refuses it."""


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_head_timer", "_listener")

    def __init__(self, listener: Listener, **options: Any) -> None:
        super().__init__(listener, **options)
        self._listener = listener
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._head_timer = self._loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        if self._request_count == 0 and self.transport is not None:
            self.force_close()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """True keeps the way back open: aiohttp would drop the answer to a request that is whole."""
        transport = self.transport
        idle = self._waiter is not None and not self._messages
        if transport is None or idle or transport.get_extra_info("sslcontext") is not None:
            return None
        request = self._current_request
        if request is not None and (request.writer.output_size or not request.content.is_eof()):
            return None
        self._close = True  # after this answer
        self._loop.call_later(PROBE_SECONDS[0], self._probe, 0)
        return True

    def _probe(self, step: int) -> None:
        """Only what is sent tells a half-closed connection from one whose client has gone."""
        transport, request = self.transport, self._current_request
        if transport is None:
            return
        if step == 0 and request is not None:
            if not request.content.is_eof():
                transport.abort()
                return
            if request.version >= (1, 1) and not request.writer.output_size:
                transport.write(PROBE)
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport.abort()
        elif step + 1 < len(PROBE_SECONDS):
            self._loop.call_later(PROBE_SECONDS[step + 1], self._probe, step + 1)

    def log_exception(self, *args: Any, **options: Any) -> None:
        """A client's broken body has been answered; it is no failure of the gateway."""
        if not isinstance(options.get("exc_info"), HttpProcessingError | web.RequestPayloadError):
            super().log_exception(*args, **options)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is not HTTP, or to a failure outside the handlers' own handling."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        if status >= 500:
            logger.error("a request failed outside its handler", exc_info=exc)
            failure = RequestError(500, "Internal error.", code="internal_error")
        else:
            logger.warning("malformed request from %s: %s", request.remote, type(exc).__name__)
            failure = _malformed(exc)
        self._listener.on_malformed(failure.status)
        response = error_response(failure, answered_id(request))
        response.force_close()
        return response


def _malformed(error: BaseException | None) -> RequestError:
    if isinstance(error, LineTooLong):
        return RequestError(431, "The request's head is too large.", code="head_too_large")
    return RequestError(400, "The request is not well-formed HTTP.", code="malformed_request")


class Listener(web.Server):
    """Makes connections."""

    def __init__(self, made: web.Server, on_malformed: Callable[[int], None]) -> None:
        """Takes over what aiohttp made for an application."""
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )
        self.on_malformed = on_malformed

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """An application behind a Listener."""

    def __init__(self, app: web.Application, on_malformed: Callable[[int], None], **options: Any) -> None:
        super().__init__(app, access_log=None, **options)
        self._on_malformed = on_malformed

    async def _make_server(self) -> Listener:
        return Listener(await super()._make_server(), self._on_malformed)
