"""Errors as clients see them: OpenAI's nested body, the right status, nothing of the inside."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from aiohttp import web

from gateway.api.request_id import HEADER
from gateway.engines.base import EngineError
from gateway.serving.errors import RequestError, unavailable
from gateway.serving.flight import BrokenOffError
from router.messages import NoWorkerError

logger = logging.getLogger(__name__)


def as_request_error(error: Exception) -> RequestError:
    """What the client is told of a failure before its answer began."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, NoWorkerError):
        logger.warning("no worker: %s", error)
        return unavailable("No worker can take this request now.", "no_worker")
    if isinstance(error, EngineError):
        return from_engine(error)
    logger.error("request failed", exc_info=error)
    return RequestError(500, "Internal error.", code="internal_error")


def body_of(error: RequestError) -> bytes:
    """The JSON body, which is also the payload of an error frame in a stream."""
    detail = {
        "message": error.message,
        "type": _type(error.status),
        "param": error.param,
        "code": error.code,
    }
    return msgspec.json.encode({"error": detail})


def error_response(
    error: RequestError, request_id: str, body: Callable[[RequestError], bytes] = body_of
) -> web.Response:
    return web.Response(
        body=body(error),
        status=error.status,
        headers={HEADER: request_id, **error.headers},
        content_type="application/json",
    )


def from_engine(error: EngineError) -> RequestError:
    """A worker's failure as the client's answer: a worker's 4xx stays what it is, the rest is 502 or 503."""
    status = error.status
    if status is not None and 400 <= status < 500 and status not in _OURS:
        if status == 429:
            return RequestError(429, str(error), code="engine_overloaded", headers={"Retry-After": "1"})
        return RequestError(status, str(error), param=error.param)
    if status == 503:
        return unavailable("The worker is overloaded.", "engine_overloaded")
    # The SDKs would do it all again, as often as the gateway just did.
    headers = {"x-should-retry": "false"} if error.attempts > 1 else {}
    message = "The worker failed this request before it answered."
    return RequestError(502, message, code="engine_error", headers=headers)


_OURS = (401, 403, 407, 408)
"""A worker's answers that are about the gateway, not about the client's request."""


def in_stream(error: EngineError) -> RequestError:
    """What a client reads in its stream when the worker failed after the first event."""
    if error.status is not None and 400 <= error.status < 500:
        return RequestError(error.status, str(error), param=error.param)
    message = "The worker failed while it was answering; the answer is incomplete."
    if isinstance(error, BrokenOffError):
        message += f" It could not be continued: {error.why}."
    return RequestError(502, message, code="engine_error")


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 404:
        return "not_found_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
