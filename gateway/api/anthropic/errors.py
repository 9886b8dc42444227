"""Errors in Anthropic's shape."""

from __future__ import annotations

import msgspec

from gateway.serving.errors import RequestError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_body(error: RequestError, request_id: str | None = None) -> bytes:
    """The JSON body, which is also the payload of an error event in a stream."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    detail = {"type": kind, "message": error.message}
    return msgspec.json.encode({"type": "error", "error": detail, "request_id": request_id})
