"""Every request field: how it is checked and where it goes.

Values are kept as the JSON text the client sent, so that a number reaches the worker as it was spelled.
`gateway.api.reach` says the same by worker endpoint, for docs/api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from gateway.api import checks, tool_fields
from gateway.serving.errors import RequestError, bad_request
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
    """It is checked, and means nothing to a worker: the answer is the same with it and without."""
    STEERING = "steering"
    """It would steer an engine behind the gateway's back, or change what the gateway reads from it."""
    REFUSED = "refused"
    """Silence would change the answer: only the values that ask for nothing are taken."""


class Field(NamedTuple):
    goes: Goes
    check: checks.Check
    note: str = ""
    """Of a refused field: why, or what to do instead."""


_object = checks.typed(dict[str, Any], "an object")
_boolean = checks.typed(bool, "a boolean")
_anything = checks.typed(Any, "JSON")
_scalar = str | int | float

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
    "stop_token_ids": checks.token_ids(),
    "ignore_eos": _boolean,
    "logit_bias": checks.logit_bias,
    "allowed_token_ids": checks.token_ids(empty=False),
    "bad_words": checks.texts(128),
    "vllm_xargs": checks.without(
        checks.typed(dict[str, _scalar | list[_scalar]], "an object of strings, numbers, or lists of them"),
        ("kv_transfer_params", "ec_transfer_params"),
    ),
    "thinking_token_budget": checks.integer(-1),
    "repetition_detection": _object,
    "watermarking": _boolean,
}

CHECKED_WITH_THE_PROMPT = ("min_tokens", "stop_token_ids", "logit_bias", "allowed_token_ids")
"""Sampling parameters whose limits come with the model or with other fields."""

GATEWAY: dict[str, checks.Check] = {
    "model": checks.text(1),
    "stream": _boolean,
    "stream_options": tool_fields.stream_options,
    "max_tokens": checks.integer(1),
    "max_completion_tokens": checks.integer(1),
    "n": checks.integer(1, 128),
    "stop": checks.stop_strings,
    "include_stop_str_in_output": _boolean,
    "structured_outputs": _object,
    "response_format": tool_fields.response_format,
}

CHAT: dict[str, checks.Check] = {
    "messages": checks.typed(list[dict[str, Any]], "a list of message objects"),
    "tools": tool_fields.tools,
    "tool_choice": tool_fields.tool_choice,
    "parallel_tool_calls": _boolean,
    "reasoning_effort": checks.text(),
    "thinking": tool_fields.thinking,
    "chat_template_kwargs": _object,
    "logprobs": _boolean,
    "top_logprobs": checks.integer(0, 20),
    "add_generation_prompt": _boolean,
}

COMPLETION: dict[str, checks.Check] = {
    "prompt": checks.prompt,
    "echo": _boolean,
    "logprobs": checks.integer(0, 20),
}

TOP: dict[str, checks.Check] = {
    "cache_salt": checks.text(1, 128, without="@/\\\0"),
    "priority": checks.integer(-checks.INT64),
}

NOWHERE: dict[str, checks.Check] = {
    "user": checks.text(),
    "metadata": tool_fields.metadata,
    "store": _boolean,
    "service_tier": checks.text(),
    "safety_identifier": checks.text(),
    "prompt_cache_key": checks.text(),
    "prompt_cache_options": _object,
    "prompt_cache_retention": checks.text(),
    "moderation": _anything,
    "prediction": _object,
    "verbosity": checks.one_of("low", "medium", "high"),
    "length_penalty": checks.number(-checks.INT64),
    "truncation_side": checks.one_of("left", "right"),
    "add_special_tokens": _boolean,
    "stream_interval": checks.integer(1),
}

STEERING = (
    "kv_transfer_params",
    "ec_transfer_params",
    "data_parallel_rank",
    "routed_dp_rank",
    "rid",
    "request_id",
    "extra_key",
    "lora_path",
    "custom_logit_processor",
    "custom_params",
    "prompt_token_ids",
    "input_ids",
    "input_embeds",
    "token_ids",
    "token_offsets",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "return_token_offsets",
    "return_prompt_text",
    "return_meta_info",
    "return_cached_tokens_details",
    "return_mm_kwargs",
    "return_weight_versions",
    "routed_experts_prompt_start",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "separate_reasoning",
    "stream_reasoning",
    "sampling_params",
    "output_mode",
    "features",
    "content_parts",
    "mm_payload",
    "mm_hashes",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "parse_context",
    "reasoning_ended",
    "reasoning_parser_kwargs",
    "extra_args",
    "detokenize",
)
"""Fields that would steer an engine, or change what the gateway reads from it; they are dropped."""

STEERING_PREFIXES = ("bootstrap_", "session_", "disagg_", "remote_", "do_remote_")
"""The same for families of fields that grow from version to version."""

UNSUPPORTED = {
    "prompt_logprobs": "log probabilities are not supported",
    "logprob_token_ids": "log probabilities are not supported",
    "best_of": "only the completions that are asked for are generated",
    "suffix": "insertion is not supported",
    "functions": "use `tools`",
    "function_call": "use `tool_choice`",
    "use_beam_search": "beam search is not supported",
    "continue_final_message": "set `partial` on the last message",
    "truncate_prompt_tokens": "a prompt is served whole or not at all",
    "include_reasoning": "reasoning is always in a field of its own",
    "documents": "put them into messages",
    "chat_template": "the model's own prompt format is used",
    "prompt_embeds": "a prompt is text or token ids",
    "audio": "audio is not supported",
    "modalities": "answers are text",
    "web_search_options": "there is no web search here",
}
"""Fields whose silence would change the answer, with the reason: refused unless they ask for nothing."""

_ASKS_NOTHING = (b"null", b"false", b"0", b'""', b"[]")
_ALSO_ASKS_NOTHING = {
    "best_of": (b"1",),
    "modalities": (b'["text"]',),
    "include_reasoning": (b"true",),
    "function_call": (b'"none"',),
    "truncate_prompt_tokens": (b"-1",),
}
_ASKS_SOMETHING = {"include_reasoning": (b"false",)}


def _table(own: Mapping[str, checks.Check], others: Mapping[str, checks.Check]) -> dict[str, Field]:
    table = {name: Field(Goes.GATEWAY, check) for name, check in (GATEWAY | dict(own)).items()}
    table |= {name: Field(Goes.SAMPLING, check) for name, check in SAMPLING.items()}
    table |= {name: Field(Goes.TOP, check) for name, check in TOP.items()}
    table |= {name: Field(Goes.NOWHERE, check) for name, check in NOWHERE.items()}
    # Fields of one endpoint mean nothing on the other, and must not reach a worker's body from there.
    table |= {name: Field(Goes.NOWHERE, _anything) for name in others.keys() - own.keys()}
    table |= {name: Field(Goes.STEERING, _anything) for name in STEERING}
    table |= {name: Field(Goes.REFUSED, _anything, note) for name, note in UNSUPPORTED.items()}
    return table


CHAT_FIELDS = _table(CHAT, COMPLETION)
COMPLETION_FIELDS = _table(COMPLETION, CHAT)


def steers(name: str) -> bool:
    """Whether a field is kept from engines."""
    return name in STEERING or name.startswith(STEERING_PREFIXES)


_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_fields(body: bytes, table: Mapping[str, Field], *, strict: bool = False) -> Fields:
    """Sort and check a body. null counts as absent. Raises RequestError that names the field.

    `strict` refuses fields that are not in the table, instead of passing them on. What only the gateway
    cannot do is left in `Fields.refusal`: a worker that takes requests as they are may be able to.
    """
    fields = Fields({}, {}, {})
    for name, raw in _split_body(body).items():
        value = bytes(raw)
        if value == b"null":
            continue
        field = table.get(name)
        if field is not None:
            _sort(fields, name, field, value)
        elif not name.startswith(STEERING_PREFIXES):
            if strict:
                message = f"`{name[:64]}` is not a field of this request."
                raise bad_request(message, name[:64], "unknown_parameter")
            fields.top_level[name] = value
    return fields


def _sort(fields: Fields, name: str, field: Field, value: bytes) -> None:
    try:
        checked = field.check(value)
    except checks.MemberError as error:
        param = name + error.path
        raise bad_request(f"`{param}` {error}.", param, "invalid_value") from None
    except ValueError as error:
        raise bad_request(f"`{name}` {error}.", name, "invalid_value") from None
    if field.goes is Goes.GATEWAY:
        fields.values[name] = checked
    elif field.goes is Goes.SAMPLING:
        fields.sampling[name] = value
        if name in CHECKED_WITH_THE_PROMPT:
            fields.values[name] = checked
    elif field.goes is Goes.TOP:
        fields.values[name] = checked
        fields.top_level[name] = value
    elif field.goes is Goes.REFUSED and not _asks_nothing(name, value):
        fields.refusal = _unsupported(name, field.note)


def _asks_nothing(name: str, value: bytes) -> bool:
    if value in _ASKS_SOMETHING.get(name, ()):
        return False
    return value in _ASKS_NOTHING or value in _ALSO_ASKS_NOTHING.get(name, ())


def _unsupported(name: str, note: str) -> RequestError:
    return bad_request(f"`{name}`: {note}.", name, "unsupported_parameter")


def _split_body(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _split(body)
    except msgspec.ValidationError:
        raise bad_request("The request body must be a JSON object.", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise bad_request("The request body is nested too deeply.", code="invalid_json") from None
