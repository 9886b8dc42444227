"""Why a request cannot be served, with what its client must know. Rendering is the API's business."""

from __future__ import annotations

from collections.abc import Mapping

MAX_MESSAGE_CHARS = 2000


class RequestError(Exception):
    """An answer that is an error.

    `status` is the HTTP status, `param` names the field, `code` is OpenAI's machine-readable reason.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message[:MAX_MESSAGE_CHARS]
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> RequestError:
    return RequestError(400, message, param=param, code=code)


def model_not_found(model: str) -> RequestError:
    message = f"The model `{model}` does not exist or is not served here."
    return RequestError(404, message, param="model", code="model_not_found")


def context_length_exceeded(prompt_tokens: int, limit: int, param: str) -> RequestError:
    message = (
        f"This model's maximum context length is {limit} tokens, but the request has {prompt_tokens} prompt "
        "tokens and must leave room for at least one more."
    )
    return RequestError(400, message, param=param, code="context_length_exceeded")


def unavailable(message: str, code: str, retry_after_seconds: int = 1) -> RequestError:
    return RequestError(503, message, code=code, headers={"Retry-After": str(retry_after_seconds)})


def too_many(message: str, code: str, retry_after_seconds: int = 1) -> RequestError:
    """More than the gateway takes at once; the same request may be sent again."""
    return RequestError(429, message, code=code, headers={"Retry-After": str(retry_after_seconds)})
