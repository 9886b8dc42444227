"""`POST /v1/chat/completions`: the body, and the checks that vLLM makes before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parsers.base import Chat, Constraint
from simulator import errors
from simulator.errors import ApiError
from simulator.output import Script
from simulator.requests import Sampling, StreamOptions, check_sampling, decode

EMPTY_CHAT = "Cannot apply chat template to an empty conversation. Provide at least one message."


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """What of a chat request this worker looks at; all else is taken and left alone."""

    messages: list[dict[str, Any]] | None = None
    model: str | None = None
    request_id: str | None = None
    n: int | None = 1
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = 0
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = False
    skip_special_tokens: bool | None = True
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking: bool | dict[str, Any] | None = None
    include_reasoning: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    vllm_xargs: Script | None = None
    kv_transfer_params: Any = None

    @property
    def choices(self) -> int:
        """How many answers."""
        return 1 if self.n is None else self.n

    @property
    def limit(self) -> int | None:
        """Largest output in tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def named_tool(self) -> str | None:
        """The function that must be called."""
        if not isinstance(self.tool_choice, dict):
            return None
        name: str | None = (self.tool_choice.get("function") or {}).get("name")
        return name

    @property
    def must_call(self) -> bool:
        """Whether some function must be called."""
        return self.tool_choice == "required" or self.named_tool is not None

    @property
    def shows_reasoning(self) -> bool:
        """Whether reasoning is part of the answer; log-probabilities and ids go with it."""
        return self.include_reasoning is not False

    def chat(self) -> Chat:
        """What the format encodes."""
        return Chat(
            messages=self.messages or [],
            tools=self.tools,
            tool_choice=self.tool_choice,
            response_format=self.response_format,
            reasoning_effort=self.reasoning_effort,
            thinking=self.thinking,
            parallel_tool_calls=self.parallel_tool_calls,
            structured_outputs=self.structured_outputs,
            template_kwargs=self.chat_template_kwargs or {},
        )

    def sampling(self, constraint: Constraint | None = None) -> Sampling:
        """The sampling parameters, with the constraint that the format made of what was asked for."""
        return Sampling(
            n=self.choices,
            max_tokens=self.limit,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured_outputs=None if constraint is None else {constraint.kind: constraint.value},
        )


def decode_chat(body: bytes) -> ChatBody:
    """Raises ApiError for what the schema does not take."""
    request = decode(body, ChatBody)
    if request.messages is None:
        raise errors.missing("messages", len(msgspec.json.decode(body)))
    if request.stream_options is not None and not request.stream:
        raise errors.stream_options_without_stream()
    _check_tools(request)
    return request


def check_chat(request: ChatBody, context_length: int) -> None:
    """Raises ApiError for what the schema takes and the server does not."""
    if not request.messages:
        raise ApiError(EMPTY_CHAT)
    limit = request.limit
    if limit is not None and limit > context_length:
        raise errors.too_many_tokens(limit, context_length)
    check_sampling(request.sampling())


def _check_tools(request: ChatBody) -> None:
    if request.named_tool is None:
        return
    names = [(tool.get("function") or {}).get("name") for tool in request.tools or []]
    if request.named_tool not in names:
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise errors.parameter_error(message, "tool_choice", show_value=False)
