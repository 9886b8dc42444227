"""Request bodies: decoding and the checks that vLLM makes before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from simulator import errors
from simulator.errors import ApiError
from simulator.output import Script

Body = TypeVar("Body", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters that change what this worker does; all others are taken and not looked at."""

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int | None = 0
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = False
    skip_special_tokens: bool | None = True
    logprobs: int | None = None
    structured_outputs: Mapping[str, Any] | None = None
    extra_args: Script | None = None

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /inference/v1/generate`."""

    token_ids: list[int] | None = None
    sampling_params: Sampling | None = None
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    output_mode: str = "tokens"
    kv_transfer_params: Any = None


class CompletionBody(Sampling, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[Any] | None = None
    model: str | None = None
    request_id: str | None = None
    max_tokens: int | None = 16
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    vllm_xargs: Script | None = None
    kv_transfer_params: Any = None


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /inference/v1/abort_requests`: ids as the answers have them."""

    request_ids: list[str] | None = None


def decode_generate(body: bytes) -> GenerateBody:
    """Raises ApiError."""
    request = decode(body, GenerateBody)
    for name in ("token_ids", "sampling_params"):
        if getattr(request, name) is None:
            raise errors.missing(name, len(msgspec.json.decode(body)))
    ids = request.token_ids
    if not ids:
        raise errors.too_short("token_ids")
    if min(ids) < 0:
        index = next(index for index, token_id in enumerate(ids) if token_id < 0)
        raise errors.schema_error(errors.negative_id("token_ids", index, ids[index]))
    assert request.sampling_params is not None
    check_sampling(request.sampling_params)
    return request


def decode_completion(body: bytes) -> CompletionBody:
    """Raises ApiError."""
    request = decode(body, CompletionBody)
    if request.stream_options is not None and not request.stream:
        raise errors.stream_options_without_stream()
    check_sampling(request)
    return request


def decode_abort(body: bytes) -> list[str]:
    """Names of the requests to end. Raises ApiError."""
    request_ids = decode(body, AbortBody).request_ids
    if request_ids is None:
        raise ApiError("Missing 'request_ids' in request body")
    return request_ids


def prompts_of(request: CompletionBody) -> list[str | list[int]]:
    """The prompts of a completion: one or several, each a text or token ids. Raises ApiError."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError("You must pass at least one prompt")
    if all(isinstance(entry, str) for entry in prompt):
        return list(prompt)
    lists = [prompt] if isinstance(prompt[0], int) else prompt
    try:
        checked = msgspec.convert(lists, list[list[int]])
    except msgspec.ValidationError as error:
        raise errors.wrong_type(error) from None
    for ids in checked:
        if not ids:
            raise ApiError("You must pass at least one prompt")
        if min(ids) < 0:
            index = next(index for index, token_id in enumerate(ids) if token_id < 0)
            raise errors.negative_prompt_id(index, ids[index], len(ids))
    return list(checked)


def check_sampling(sampling: Sampling) -> None:
    """Raises ApiError for values that no engine takes."""
    if sampling.n < 1:
        raise ApiError(f"n must be at least 1, got {sampling.n}.")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        value = sampling.max_tokens
        raise errors.parameter_error(f"max_tokens must be at least 1, got {value}.", "max_tokens", value)
    if sampling.temperature is not None and sampling.temperature < 0:
        value_ = sampling.temperature
        raise errors.parameter_error(
            f"temperature must be non-negative, got {value_}.", "temperature", value_
        )
    if sampling.logprobs is not None and sampling.logprobs > 20:
        asked = sampling.logprobs
        raise errors.parameter_error(
            f"Requested sample logprobs of {asked}, which is greater than max allowed: 20", "logprobs", asked
        )


def decode(body: bytes, type_: type[Body]) -> Body:
    """A body of that type. Raises ApiError."""
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        raise errors.wrong_type(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.bad_json(body) from None
