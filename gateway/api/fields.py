"""Every request field: how it is checked and where it goes.

Values are kept as the JSON text the client sent, so that a number reaches the worker as it was spelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from gateway.api import checks
from gateway.serving.errors import bad_request
from gateway.serving.request import Fields


class Goes(Enum):
    """Where a field's value goes."""

    GATEWAY = "gateway"
    """The gateway acts on it itself."""
    SAMPLING = "sampling"
    """To the worker, among the sampling parameters."""
    TOP = "top"
    """To the worker, beside the sampling parameters."""
    NOWHERE = "nowhere"
    """It would steer an engine behind the gateway's back, or means nothing to a worker."""


class Field(NamedTuple):
    goes: Goes
    check: checks.Check


_object = checks.typed(dict[str, Any], "an object")
_boolean = checks.typed(bool, "a boolean")
_anything = checks.typed(Any, "JSON")
_ids = checks.typed(list[int], "a list of token ids")

SAMPLING: dict[str, checks.Check] = {
    "temperature": checks.number(0, 2),
    "top_p": checks.number(0, 1, exclusive_low=True),
    "top_k": checks.integer(-1),
    "min_p": checks.number(0, 1),
    "presence_penalty": checks.number(-2, 2),
    "frequency_penalty": checks.number(-2, 2),
    "repetition_penalty": checks.number(0, exclusive_low=True),
    "seed": checks.integer(-checks.INT64),
    "min_tokens": checks.integer(0),
    "stop_token_ids": _ids,
    "ignore_eos": _boolean,
    "logit_bias": checks.logit_bias,
    "allowed_token_ids": _ids,
    "bad_words": checks.typed(list[str], "a list of strings"),
    "vllm_xargs": _object,
}

GATEWAY: dict[str, checks.Check] = {
    "model": checks.text(1),
    "stream": _boolean,
    "stream_options": _object,
    "max_tokens": checks.integer(1),
    "max_completion_tokens": checks.integer(1),
    "n": checks.integer(1, 128),
    "stop": checks.stop_strings,
    "include_stop_str_in_output": _boolean,
    "user": checks.text(),
    "metadata": _object,
}

CHAT: dict[str, checks.Check] = {
    "messages": checks.typed(list[dict[str, Any]], "a list of message objects"),
    "tools": checks.typed(list[dict[str, Any]], "a list of tool objects"),
    "tool_choice": _anything,
    "parallel_tool_calls": _boolean,
    "response_format": _object,
    "structured_outputs": _object,
    "reasoning_effort": checks.text(),
    "thinking": _object,
    "chat_template_kwargs": _object,
    "logprobs": _boolean,
    "top_logprobs": checks.integer(0, 20),
}

COMPLETION: dict[str, checks.Check] = {
    "prompt": checks.prompt,
    "echo": _boolean,
    "logprobs": checks.integer(0, 20),
    "structured_outputs": _object,
}

TOP: dict[str, checks.Check] = {
    "cache_salt": checks.text(1, 128),
    "priority": checks.integer(-checks.INT64),
}

STEERING = (
    "kv_transfer_params",
    "ec_transfer_params",
    "data_parallel_rank",
    "routed_dp_rank",
    "rid",
    "request_id",
    "custom_logit_processor",
    "prompt_token_ids",
    "input_ids",
    "token_ids",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "sampling_params",
    "output_mode",
    "features",
    "content_parts",
    "parse_context",
    "reasoning_ended",
    "reasoning_parser_kwargs",
    "extra_args",
    "detokenize",
)
"""Fields that would steer an engine, or change what the gateway reads from it; they are dropped."""

STEERING_PREFIXES = ("bootstrap_", "session_", "disagg_", "remote_", "do_remote_")
"""The same for families of fields that grow from version to version."""

ENDPOINT_FIELDS = CHAT.keys() | COMPLETION.keys()
"""Fields of one endpoint mean nothing on the other, and must not reach a worker's body from there."""

UNSUPPORTED = {
    "prompt_logprobs": "log probabilities are not supported",
    "best_of": "only the completions that are asked for are generated",
    "suffix": "insertion is not supported",
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "use_beam_search": "beam search is not supported",
}
"""Fields whose silence would change the answer: set to anything but null, false or 0 they are refused."""


def _table(own: Mapping[str, checks.Check]) -> dict[str, Field]:
    table = {name: Field(Goes.GATEWAY, check) for name, check in (GATEWAY | dict(own)).items()}
    table |= {name: Field(Goes.SAMPLING, check) for name, check in SAMPLING.items()}
    table |= {name: Field(Goes.TOP, check) for name, check in TOP.items()}
    table |= {name: Field(Goes.NOWHERE, _anything) for name in (*STEERING, *ENDPOINT_FIELDS - own.keys())}
    return table


CHAT_FIELDS = _table(CHAT)
COMPLETION_FIELDS = _table(COMPLETION)


def steers(name: str) -> bool:
    """Whether a field is kept from engines."""
    return name in STEERING or name.startswith(STEERING_PREFIXES)


_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_EMPTY = (b"null", b"false", b"0", b'""', b"[]")


def read_fields(body: bytes, table: Mapping[str, Field]) -> Fields:
    """Sort and check a body. null counts as absent. Raises RequestError that names the field."""
    fields = Fields({}, {}, {})
    for name, raw in _split_body(body).items():
        value = bytes(raw)
        if value == b"null":
            continue
        if name in UNSUPPORTED:
            if value not in _EMPTY:
                raise bad_request(f"`{name}`: {UNSUPPORTED[name]}.", name, "unsupported_parameter")
            continue
        field = table.get(name)
        if field is None:
            if not name.startswith(STEERING_PREFIXES):
                fields.top_level[name] = value
        else:
            _sort(fields, name, field, value)
    return fields


def _sort(fields: Fields, name: str, field: Field, value: bytes) -> None:
    try:
        checked = field.check(value)
    except ValueError as error:
        raise bad_request(f"`{name}` {error}.", name, "invalid_value") from None
    if field.goes is Goes.GATEWAY:
        fields.values[name] = checked
    elif field.goes is Goes.SAMPLING:
        fields.sampling[name] = value
    elif field.goes is Goes.TOP:
        fields.values[name] = checked
        fields.top_level[name] = value


def _split_body(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _split(body)
    except msgspec.ValidationError:
        raise bad_request("The request body must be a JSON object.", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.", code="invalid_json") from None
