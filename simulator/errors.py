"""Error answers, word for word as vLLM 0.32.0 gives them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

STATUS_TYPES = {400: "BadRequestError", 403: "PermissionDeniedError", 404: "NotFoundError"}
SCHEMA_TYPE = "Bad Request"
"""The type of an error that the schema found, as against one that the server thought of."""


class ApiError(Exception):
    """An answer with an error body."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, type_: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.type = type_ or STATUS_TYPES.get(status, "InternalServerError")

    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


def parameter_error(message: str, name: str, value: Any = None, *, show_value: bool = True) -> ApiError:
    """A bad value of a known parameter; the message ends with name and value."""
    shown = f", value={value}" if show_value else ""
    return ApiError(f"{message} (parameter={name}{shown})", param=name)


def schema_error(*problems: dict[str, Any]) -> ApiError:
    """Problems as the schema reports them: `type`, `loc`, `msg`, `input` and sometimes `ctx`."""
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
    lines = "".join(f"\n  {problem}" for problem in problems)
    return ApiError(f"{count}:{lines}", param=problems[0]["loc"], type_=SCHEMA_TYPE)


def wrong_content_type() -> ApiError:
    """A body that is not called JSON."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(message, type_=SCHEMA_TYPE)


def bad_json(body: bytes) -> ApiError:
    """A body that is not JSON, with the place and the words of Python's own parser."""
    position, reason = 0, "Invalid JSON"
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        position, reason = error.pos, error.msg
    except (UnicodeDecodeError, RecursionError) as error:
        reason = str(error)
    problem = {"type": "json_invalid", "loc": f"body.{position}", "msg": "JSON decode error"}
    return schema_error(problem | {"input": "<dict of 0 items>", "ctx": {"error": reason}})


def missing(name: str, fields: int) -> ApiError:
    """A required field that a body of `fields` fields lacks."""
    where = {"type": "missing", "loc": f"body.{name}", "msg": "Field required"}
    return schema_error(where | {"input": f"<dict of {fields} items>"})


def too_short(name: str) -> ApiError:
    """An empty list where at least one item is needed."""
    return schema_error(
        {
            "type": "too_short",
            "loc": f"body.{name}",
            "msg": "List should have at least 1 item after validation, not 0",
            "input": "<list of 0 items>",
            "ctx": {"field_type": "List", "min_length": 1, "actual_length": 0},
        }
    )


def negative_id(name: str, index: int, value: int) -> dict[str, Any]:
    """The problem of a token id below 0."""
    return {
        "type": "greater_than_equal",
        "loc": f"body.{name}.{index}",
        "msg": "Input should be greater than or equal to 0",
        "input": str(value),
        "ctx": {"ge": 0},
    }


def negative_prompt_id(index: int, value: int, length: int) -> ApiError:
    """The same in a completion's prompt, which could also have been a list, a string or strings."""
    loc, shown = f"body.prompt.{index}", str(value)
    string = {"type": "string_type", "msg": "Input should be a valid string"}
    return schema_error(
        negative_id("prompt", index, value),
        {"type": "list_type", "loc": loc, "msg": "Input should be a valid list", "input": shown},
        {
            "type": string["type"],
            "loc": "body.prompt",
            "msg": string["msg"],
            "input": f"<list of {length} items>",
        },
        {"type": string["type"], "loc": loc, "msg": string["msg"], "input": shown},
    )


def wrong_type(error: msgspec.ValidationError) -> ApiError:
    """A field of another type than the schema's; msgspec's own words and path."""
    text, _, path = str(error).partition(" - at `$")
    loc = "body" + path.rstrip("`").replace("[", ".").replace("]", "")
    return schema_error({"type": "type_error", "loc": loc, "msg": text, "input": "<value>"})


def stream_options_without_stream() -> ApiError:
    """Stream options of an answer that is not streamed."""
    message = "Stream options can only be defined when `stream=True`."
    return parameter_error(message, "stream_options", show_value=False)


def too_many_tokens(asked: int, limit: int) -> ApiError:
    """More output than the context holds."""
    message = f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output"
    return parameter_error(f"{message} tokens.", "max_tokens", asked)


def scale_out_disabled() -> ApiError:
    """An endpoint that vLLM has switched off unless told otherwise."""
    return ApiError(
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
        status=403,
    )


def unknown_model(name: str, served: str) -> ApiError:
    """A model that is not served here."""
    message = f"The model `{name}` does not exist. Valid aliases: {served}."
    return ApiError(message, status=404, param="model")


def internal() -> ApiError:
    """A request that failed inside the engine, for one because its KV could not be loaded."""
    return ApiError("Internal server error", status=500)


def engine_dead() -> ApiError:
    """Any request once the engine has died; the server follows it."""
    return ApiError(
        "EngineCore encountered an issue. See stack trace (above) for the root cause.", status=500
    )


def outside_vocabulary(token_id: int) -> ApiError:
    """An id that the vocabulary does not have."""
    return ApiError(f"Token id {token_id} is out of vocabulary")


def generate_too_long(length: int, limit: int) -> ApiError:
    """A prompt of token ids that is longer than the model's context."""
    return ApiError(
        f"The decoder prompt (length {length}) is longer than the maximum model length of {limit}. "
        "Make sure that `max_model_len` is no smaller than the number of text tokens."
    )


def completion_too_long(limit: int) -> ApiError:
    """The same on the OpenAI surface, which stops counting one past the limit."""
    return parameter_error(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
        f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        limit + 1,
    )
