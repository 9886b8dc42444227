"""A checked request to a job: the prompt's ids, the worker's parameters, how its output will be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import msgspec

from gateway.config import Settings
from gateway.engines.base import Image
from gateway.engines.parameters import IMAGES, PROMPT_LOGPROBS
from gateway.media.fetch import Fetcher
from gateway.media.images import ImageError, ImageLoader, find_images
from gateway.serving.chat_checks import check_chat
from gateway.serving.errors import bad_request, context_length_exceeded
from gateway.serving.generation import Choice, Emitter, Generation, GenerationFactory, Observer
from gateway.serving.job import Details, Job, Prepared, Reading, StopRules
from gateway.serving.request import Fields
from gateway.serving.sampling_checks import check_sampling
from gateway.serving.stops import StopMatcher
from gateway.serving.token_watch import TokenWatch
from gateway.serving.vendor import check_vendor_rules, vendor_defaults
from gateway.tokens.encodings import Encoding, Encodings
from gateway.tokens.prompts import EncodedPrompt
from gateway.tokens.tokenizer import Tokenizer, TokenizerError, is_long
from parsers.base import Chat, Constraint, FormatError, OutputOptions, Piece, Segment
from parsers.constraints import requested
from parsers.registry import STRICT_PROFILE

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions."""


class Limits(Protocol):
    """What the fleet allows."""

    def context_length(self, model: str) -> int | None: ...

    def pools(self, model: str) -> frozenset[str]:
        """Pools with a worker that serves the model, or did."""
        ...

    def unable(self, parameters: Collection[str]) -> frozenset[str]:
        """Workers that do not have one of these sampling parameters."""
        ...

    def serves_without(self, model: str, workers: Collection[str]) -> bool:
        """Some worker that serves the model, or did, is not one of these."""
        ...


class _Draft(NamedTuple):
    """A request in one encoding."""

    reading: Reading
    prompt: EncodedPrompt
    constraint: Constraint | None


class Preparer:
    """Prepares requests in the encodings of the pools that serve their model."""

    def __init__(self, encodings: Encodings, limits: Limits, settings: Settings) -> None:
        self.encodings = encodings
        self._limits = limits
        self._settings = settings
        self._strict_vendor = settings.profile == STRICT_PROFILE
        self._images = ImageLoader(Fetcher(settings.image_seconds), settings.max_image_bytes)
        # One thread: the segment cache has one writer beside the event loop, and tiktoken frees the GIL.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    async def chat(self, fields: Fields, request_id: str, started: float) -> Prepared:
        """Raises RequestError."""
        check_chat(fields.values, self._settings.max_messages, self._settings.max_tools)
        if self._strict_vendor:
            check_vendor_rules(fields)
        images = await self._load_images(fields)
        chat = self._chat(fields.values)
        drafts = [
            await self._encode_chat(encoding, chat, images)
            for encoding in self._encodings_for(fields, bool(images))
        ]
        return self._prepared(fields, drafts, request_id, started, "messages", images)

    async def completion(self, fields: Fields, request_id: str, started: float) -> Prepared:
        """Raises RequestError."""
        prompt = _single_prompt(fields.values["prompt"])
        constraint = _completion_constraint(fields.values)
        drafts = [
            _Draft(*await self._encode_prompt(each, prompt), constraint)
            for each in self._encodings_for(fields)
        ]
        if fields.values.get("echo"):
            text = prompt if isinstance(prompt, str) else drafts[0].reading.encoding.tokenizer.decode(prompt)
            fields.values["echoed"] = text
        return self._prepared(fields, drafts, request_id, started, "prompt")

    async def encode_chat(self, fields: Fields) -> tuple[Reading, EncodedPrompt]:
        """A chat's prompt alone, however long it is. Raises RequestError."""
        check_chat(fields.values, self._settings.max_messages, self._settings.max_tools)
        images = await self._load_images(fields)
        encoding = self.encoding_of(fields.values["model"])
        draft = await self._encode_chat(encoding, self._chat(fields.values), images)
        return draft.reading, draft.prompt

    async def encode_text(self, fields: Fields, text: str) -> tuple[Reading, EncodedPrompt]:
        """The same of text that is no chat."""
        return await self._encode_prompt(self.encoding_of(fields.values["model"]), text)

    def encoding_of(self, model: str) -> Encoding:
        """The first of those that serve the model."""
        return self.encodings.of_pools(self._limits.pools(model))[0]

    def generation(self, prepared: Prepared, emitter: Callable[[], Emitter]) -> GenerationFactory:
        """Fresh parsers, counts and answer for each attempt of a prepared request."""

        def create(observer: Observer) -> Generation:
            reading = prepared.reading(observer.pool)
            spell = reading.encoding.tokenizer.bytes_of
            choices = [
                Choice(reading.encoding.parser(reading.options), _watch(prepared, spell))
                for _ in range(prepared.n)
            ]
            return Generation(choices, emitter(), observer, gathers=not prepared.stream)

        return create

    # Encoding

    async def _load_images(self, fields: Fields) -> Sequence[Image]:
        """Those of a chat, whose messages then have their sizes. Raises RequestError."""
        first = next(find_images(fields.values["messages"]), None)
        if first is None:
            return ()
        if not any(encoding.sees for encoding in self._encodings_for(fields)):
            message = f"`{first.param}`: the workers of this model take no images."
            raise bad_request(message, first.param, "unsupported_parameter")
        try:
            fields.values["messages"], images = await self._images.load(fields.values["messages"])
        except ImageError as error:
            raise bad_request(str(error), error.param, "invalid_image") from None
        return images

    def _encodings_for(self, fields: Fields, images: bool = False) -> Sequence[Encoding]:
        chosen: Sequence[Encoding] = self.encodings.all
        if len(chosen) > 1:
            chosen = self.encodings.of_pools(self._limits.pools(fields.values["model"]))
        if images:
            chosen = [encoding for encoding in chosen if encoding.sees]
        if "structured_outputs" in fields.values:
            # Nothing in the prompt says it: it is the worker's to keep, or nobody's.
            chosen = [encoding for encoding in chosen if encoding.constrains]
            if not chosen:
                message = "`structured_outputs`: the workers of this model have no grammar."
                raise bad_request(message, "structured_outputs", "unsupported_parameter")
        return chosen

    def _chat(self, values: dict[str, Any]) -> Chat:
        return Chat(
            messages=values["messages"],
            tools=values.get("tools"),
            tool_choice=values.get("tool_choice"),
            response_format=values.get("response_format"),
            reasoning_effort=values.get("reasoning_effort"),
            thinking=values.get("thinking"),
            parallel_tool_calls=values.get("parallel_tool_calls"),
            structured_outputs=values.get("structured_outputs"),
            template_kwargs=_template_kwargs(values),
            strict_efforts=self._settings.reasoning_efforts == "strict",
        )

    async def _encode_chat(self, encoding: Encoding, chat: Chat, images: Sequence[Image] = ()) -> _Draft:
        try:
            encoded = encoding.model_format.encode(chat)
        except FormatError as error:
            raise bad_request(str(error), error.param) from None
        if encoded.unsized_images:
            message = "An image is not supported here: its size in pixels is not known."
            raise bad_request(message, encoded.unsized_images[0])
        prompt = await self._encode(encoding.tokenizer, encoded.pieces)
        if images:
            prompt = encoding.routed_by(prompt, [image.id for image in images])
        options = OutputOptions(
            thinking=encoded.thinking,
            tools=encoded.tools,
            tool_choice=chat.tool_choice,
            parallel_tool_calls=chat.parallel_tool_calls,
            tool_call_ids=self._settings.tool_call_ids,
        )
        counted = len(prompt.ids) - encoded.uncounted_tokens
        constraint = encoded.constraint if encoding.constrains else None
        return _Draft(Reading(encoding, options, counted), prompt, constraint)

    async def _encode_prompt(
        self, encoding: Encoding, prompt: str | list[Any]
    ) -> tuple[Reading, EncodedPrompt]:
        if isinstance(prompt, str):
            encoded = await self._encode(encoding.tokenizer, [Segment(prompt, False)])
        else:
            try:
                encoded = encoding.tokenizer.prompt_of_ids(prompt)
            except TokenizerError as error:
                raise bad_request(f"`prompt`: {error}.", "prompt") from None
        return Reading(encoding, None, len(encoded.ids)), encoded

    async def _encode(self, tokenizer: Tokenizer, pieces: Sequence[Piece]) -> EncodedPrompt:
        if not is_long(pieces):
            return tokenizer.encode_segments(pieces)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, tokenizer.encode_segments, pieces)

    # Jobs

    def _prepared(
        self,
        fields: Fields,
        drafts: Sequence[_Draft],
        request_id: str,
        started: float,
        param: str,
        images: Sequence[Image] = (),
    ) -> Prepared:
        values = fields.values
        stream = values.get("stream", False)
        stream_options = values.get("stream_options")
        if stream_options is not None and not stream:
            raise bad_request("`stream_options` needs `stream` to be true.", "stream_options")
        logprobs = _logprobs(values)
        max_tokens = self._max_tokens(values, [len(draft.prompt.ids) for draft in drafts], param)
        if fields.sampling:
            check_sampling(
                values, max_tokens, min(each.tokenizer.vocabulary.size for each in self.encodings.all)
            )
        prompt_logprobs = logprobs if "echoed" in values else None
        needed = [IMAGES] * bool(images) + [PROMPT_LOGPROBS] * (prompt_logprobs is not None)
        unable = self._unable(fields, [*fields.sampling, *needed] if needed else fields.sampling)
        jobs = [self._job(fields, draft, request_id, started, max_tokens, unable) for draft in drafts]
        for job in jobs:
            job.images, job.prompt_logprobs = images, prompt_logprobs
        job = jobs[0]
        job.others = jobs[1:]
        usage = bool((stream_options or {}).get("include_usage"))
        continuous = usage and bool((stream_options or {}).get("continuous_usage_stats"))
        token_ids = param == "messages" and bool((stream_options or {}).get("include_internal_content"))
        return Prepared(
            job=job,
            readings=[draft.reading for draft in drafts],
            n=values.get("n", 1),
            stream=stream,
            include_usage=usage,
            stop_rules=_stop_rules(fields),
            values=values,
            details=Details(logprobs=logprobs, usage=continuous, token_ids=token_ids)
            if logprobs is not None or continuous or token_ids
            else None,
            strict_vendor=self._strict_vendor,
        )

    def _job(
        self,
        fields: Fields,
        draft: _Draft,
        request_id: str,
        started: float,
        max_tokens: int,
        unable: frozenset[str],
    ) -> Job:
        values = fields.values
        return Job(
            request_id=request_id,
            model=values["model"],
            prompt=draft.prompt,
            sampling=self._sampling(fields, draft.reading, max_tokens),
            top_level=fields.top_level,
            max_tokens=max_tokens,
            cache_salt=values.get("cache_salt"),
            started=started,
            priority=values.get("priority", 0),
            constraint=draft.constraint,
            choices=values.get("n", 1),
            vocabulary=draft.reading.encoding.tokenizer.vocabulary.size,
            logprobs=_logprobs(values),
            # What was cached is told in the head of a strict answer, before the end where usage comes.
            may_stop_early="stop" in values or (self._strict_vendor and values.get("stream", False)),
            unable=unable,
            pools=None if len(self.encodings.all) == 1 else draft.reading.encoding.pools,
        )

    def _sampling(self, fields: Fields, reading: Reading, max_tokens: int) -> dict[str, bytes]:
        sampling = _sampling(fields, reading, max_tokens)
        if self._strict_vendor and reading.options is not None:
            vendor_defaults(sampling, thinking=reading.options.thinking)
        return sampling

    def _unable(self, fields: Fields, needed: Collection[str]) -> frozenset[str]:
        """Workers that cannot serve it for what it asks. Raises RequestError when none can."""
        workers = self._limits.unable(needed)
        if workers and not self._limits.serves_without(fields.values["model"], workers):
            name = next(name for name in needed if self._limits.unable((name,)))
            raise bad_request(f"`{name}`: no worker of this model has it.", name, "unsupported_parameter")
        return workers

    def _max_tokens(self, values: dict[str, Any], prompt_tokens: Sequence[int], param: str) -> int:
        """Tokens that the answer may have, whichever of the encodings it is given in."""
        longest = max(prompt_tokens)
        if longest == 0:
            raise bad_request(f"`{param}` must not be empty.", param)
        own = self._settings.context_length
        limit = min(own, self._limits.context_length(values["model"]) or own)
        if longest >= limit:
            raise context_length_exceeded(longest, limit, param)
        default = DEFAULT_COMPLETION_TOKENS if param == "prompt" else None
        asked = values.get("max_completion_tokens") or values.get("max_tokens") or default
        return min(asked, limit - longest) if asked else limit - longest


def _sampling(fields: Fields, reading: Reading, max_tokens: int) -> dict[str, bytes]:
    sampling = dict(fields.sampling)
    sampling["max_tokens"] = b"%d" % max_tokens
    n = fields.values.get("n", 1)
    if n > 1:
        sampling["n"] = b"%d" % n
    if reading.options is not None and sampling.get("ignore_eos") != b"true":
        # A worker without a tokenizer may not know what ends a message.
        ends = reading.encoding.stop_ids_json
        own = sampling.get("stop_token_ids", b"[]").strip()[1:-1].strip()
        sampling["stop_token_ids"] = b"[%b]" % b",".join(filter(None, (own, ends)))
    return sampling


def _single_prompt(prompt: Any) -> str | list[Any]:
    """Text or ids, out of a list of one if need be."""
    if prompt and not isinstance(prompt, str) and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise bad_request("`prompt` must be one prompt here.", "prompt")
        prompt = prompt[0]
    single: str | list[Any] = prompt
    return single


def _template_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    kwargs: dict[str, Any] = values.get("chat_template_kwargs") or {}
    if "add_generation_prompt" in values:
        kwargs = {"add_generation_prompt": values["add_generation_prompt"], **kwargs}
    return kwargs


def _completion_constraint(values: dict[str, Any]) -> Constraint | None:
    structured, wanted = values.get("structured_outputs"), values.get("response_format")
    try:
        return requested(Chat(messages=(), structured_outputs=structured, response_format=wanted))
    except FormatError as error:
        raise bad_request(str(error), error.param) from None


def _logprobs(values: dict[str, Any]) -> int | None:
    """How many alternatives; a chat says it in two fields, a completion in one."""
    asked = values.get("logprobs")
    if not isinstance(asked, bool | None):
        return int(asked)
    if values.get("top_logprobs") and not asked:
        raise bad_request("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    return int(values.get("top_logprobs", 0)) if asked else None


def _stop_rules(fields: Fields) -> StopRules | None:
    strings = fields.values.get("stop", ())
    raw_ids = fields.sampling.get("stop_token_ids")
    token_ids = msgspec.json.decode(raw_ids) if raw_ids else ()
    if not (strings or token_ids):
        return None
    return StopRules(
        strings=strings,
        token_ids=token_ids,
        shown=fields.values.get("include_stop_str_in_output", False),
        min_tokens=msgspec.json.decode(fields.sampling.get("min_tokens", b"0")),
    )


def _watch(prepared: Prepared, spell: Callable[[int], bytes]) -> TokenWatch | None:
    rules = prepared.stop_rules
    if rules is None and prepared.details is None:
        return None
    rules = rules or StopRules()
    return TokenWatch(
        StopMatcher(rules.strings, include=rules.shown) if rules.strings else None,
        stop_ids=rules.token_ids,
        show_stop=rules.shown,
        min_tokens=rules.min_tokens,
        spell=None if prepared.details is None else spell,
    )
