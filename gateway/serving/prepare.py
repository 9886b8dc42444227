"""A checked request to a job: the prompt's ids, the worker's parameters, how its output will be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from gateway.serving.dispatch import Job
from gateway.serving.errors import bad_request, context_length_exceeded
from gateway.serving.generation import Choice, Emitter, Generation, GenerationFactory, Observer
from gateway.serving.request import Fields
from gateway.serving.stops import StopMatcher
from gateway.tokens.prompts import EncodedPrompt
from gateway.tokens.tokenizer import Tokenizer, TokenizerError, is_long
from parsers.base import Chat, FormatError, ModelFormat, OutputOptions, OutputParser, Piece, Segment
from parsers.plain import PlainFormat

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions."""


class Limits(Protocol):
    """What the fleet allows."""

    def context_length(self, model: str) -> int | None: ...


class Prepared(msgspec.Struct, kw_only=True):
    """A job, and what its answer needs."""

    job: Job
    counted_prompt_tokens: int
    """Prompt tokens as usage reports them."""
    n: int
    stream: bool
    include_usage: bool
    options: OutputOptions | None
    """None for a plain completion."""
    stops: Sequence[str]
    include_stop: bool


class Preparer:
    """Prepares requests for one tokenizer and model format."""

    def __init__(
        self, tokenizer: Tokenizer, model_format: ModelFormat, limits: Limits, context_length: int
    ) -> None:
        self._tokenizer = tokenizer
        self._format = model_format
        self._plain = PlainFormat(model_format.stop_token_ids)
        self._limits = limits
        self._context_length = context_length
        # One thread: the segment cache has one writer beside the event loop, and tiktoken frees the GIL.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    async def chat(self, fields: Fields, request_id: str, started: float) -> Prepared:
        """Raises RequestError."""
        values = fields.values
        chat = _chat(values)
        if not chat.messages:
            raise bad_request("`messages` must not be empty.", "messages")
        try:
            encoded = self._format.encode(chat)
        except FormatError as error:
            raise bad_request(str(error), error.param) from None
        prompt = await self._encode(encoded.pieces)
        options = OutputOptions(
            thinking=encoded.thinking,
            tools=encoded.tools,
            tool_choice=chat.tool_choice,
            parallel_tool_calls=chat.parallel_tool_calls,
        )
        job = self._job(fields, prompt, request_id, started, "messages", default_tokens=None)
        counted = len(prompt.ids) - encoded.uncounted_tokens
        return self._prepared(fields, job, counted, options)

    async def completion(self, fields: Fields, request_id: str, started: float) -> Prepared:
        """Raises RequestError."""
        prompt = await self._completion_prompt(fields.values["prompt"])
        job = self._job(fields, prompt, request_id, started, "prompt", DEFAULT_COMPLETION_TOKENS)
        return self._prepared(fields, job, len(prompt.ids), None)

    def generation(self, prepared: Prepared, emitter: Callable[[], Emitter]) -> GenerationFactory:
        """Fresh parsers, counts and answer for each attempt of a prepared request."""

        def create(observer: Observer) -> Generation:
            choices = [Choice(self._parser(prepared), _matcher(prepared)) for _ in range(prepared.n)]
            return Generation(choices, emitter(), observer)

        return create

    def _parser(self, prepared: Prepared) -> OutputParser:
        detokenizer = self._tokenizer.detokenizer()
        if prepared.options is None:
            return self._plain.parser(OutputOptions(thinking=False), detokenizer)
        return self._format.parser(prepared.options, detokenizer)

    async def _encode(self, pieces: Sequence[Piece]) -> EncodedPrompt:
        if not is_long(pieces):
            return self._tokenizer.encode_segments(pieces)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._tokenizer.encode_segments, pieces)

    async def _completion_prompt(self, prompt: Any) -> EncodedPrompt:
        if isinstance(prompt, str):
            return await self._encode([Segment(prompt, False)])
        if prompt and isinstance(prompt[0], list):
            prompt = prompt[0] if len(prompt) == 1 else None
        elif prompt and isinstance(prompt[0], str):
            if len(prompt) == 1:
                return await self._encode([Segment(prompt[0], False)])
            prompt = None
        if prompt is None:
            raise bad_request("`prompt` must be one prompt; lists of several are not supported.", "prompt")
        try:
            return self._tokenizer.prompt_of_ids(prompt)
        except TokenizerError as error:
            raise bad_request(f"`prompt`: {error}.", "prompt") from None

    def _job(
        self,
        fields: Fields,
        prompt: EncodedPrompt,
        request_id: str,
        started: float,
        param: str,
        default_tokens: int | None,
    ) -> Job:
        values = fields.values
        model = values["model"]
        room = self._room(model, len(prompt.ids), param)
        asked = values.get("max_completion_tokens") or values.get("max_tokens") or default_tokens
        max_tokens = min(asked, room) if asked else room
        return Job(
            request_id=request_id,
            model=model,
            prompt=prompt,
            sampling=self._sampling(fields, max_tokens, chat=default_tokens is None),
            top_level=fields.top_level,
            max_tokens=max_tokens,
            cache_salt=values.get("cache_salt"),
            started=started,
        )

    def _room(self, model: str, prompt_tokens: int, param: str) -> int:
        """Tokens that an answer may have."""
        if prompt_tokens == 0:
            raise bad_request(f"`{param}` must not be empty.", param)
        limit = min(self._context_length, self._limits.context_length(model) or self._context_length)
        if prompt_tokens >= limit:
            raise context_length_exceeded(prompt_tokens, limit, param)
        return limit - prompt_tokens

    def _sampling(self, fields: Fields, max_tokens: int, *, chat: bool) -> dict[str, bytes]:
        sampling = dict(fields.sampling)
        sampling["max_tokens"] = b"%d" % max_tokens
        n = fields.values.get("n", 1)
        if n > 1:
            sampling["n"] = b"%d" % n
        if chat and sampling.get("ignore_eos") != b"true":
            # A worker without a tokenizer may not know what ends a message.
            own = msgspec.json.decode(sampling.get("stop_token_ids", b"[]"))
            sampling["stop_token_ids"] = msgspec.json.encode([*own, *self._format.stop_token_ids])
        return sampling

    def _prepared(self, fields: Fields, job: Job, counted: int, options: OutputOptions | None) -> Prepared:
        values = fields.values
        stream = values.get("stream", False)
        stream_options = values.get("stream_options")
        if stream_options is not None and not stream:
            raise bad_request("`stream_options` needs `stream` to be true.", "stream_options")
        return Prepared(
            job=job,
            counted_prompt_tokens=counted,
            n=values.get("n", 1),
            stream=stream,
            include_usage=bool((stream_options or {}).get("include_usage")),
            options=options,
            stops=values.get("stop", ()),
            include_stop=values.get("include_stop_str_in_output", False),
        )


def _chat(values: dict[str, Any]) -> Chat:
    kwargs = values.get("chat_template_kwargs") or {}
    return Chat(
        messages=values["messages"],
        tools=values.get("tools"),
        tool_choice=values.get("tool_choice"),
        response_format=values.get("response_format"),
        reasoning_effort=values.get("reasoning_effort"),
        thinking=values.get("thinking"),
        parallel_tool_calls=values.get("parallel_tool_calls"),
        template_kwargs=kwargs,
    )


def _matcher(prepared: Prepared) -> StopMatcher | None:
    return StopMatcher(prepared.stops, include=prepared.include_stop) if prepared.stops else None
