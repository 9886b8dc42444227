"""vLLM: token ids in, token ids out.

Endpoints, best first: `/inference/v1/generate` (needs --enable-scale-out; 403 and 404 both mean that it is
absent) and `/v1/completions` with ids and `return_token_ids`. Both stream events with the same few fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from gateway.engines.base import (
    ChoiceIndex,
    EngineError,
    EngineRequest,
    EngineUsage,
    HandoffKind,
    PrefillAnswer,
    TokenId,
    TokenSink,
)
from gateway.engines.connection import ConnectionPool
from gateway.engines.constraints import vllm_structured_outputs
from gateway.engines.exchange import WholeExchange
from gateway.engines.parameters import GENERATE_NAMES
from gateway.engines.token_exchange import StreamedError, TokenExchange, stream_error
from gateway.engines.vllm_logprobs import read_logprobs, read_prompt_logprobs

Endpoint = Literal["generate", "completions"]

PATHS: dict[Endpoint, str] = {"generate": "/inference/v1/generate", "completions": "/v1/completions"}

STREAMED = b'"stream":true,"stream_options":{"include_usage":true}'
FAILURES = ("abort", "error")
"""Finish reasons that say that there is no answer."""

EVERY_CHUNK = b'"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}'
WHOLE = b'"stream":false'
PARAMETERS = "kv_transfer_params"


class _Choice(msgspec.Struct, gc=False):
    index: ChoiceIndex = 0
    token_ids: list[TokenId] | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: StreamedError | str | None = None


class _Prefilled(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class VllmCall(TokenExchange):
    """One generation."""

    def handle_event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._ended = True
            return
        chunk = _decode(payload)
        if chunk.error is not None:
            raise stream_error(chunk.error)
        sink = self._sink
        assert sink is not None
        for choice in chunk.choices:
            if choice.token_ids:
                sink.on_tokens(choice.index, choice.token_ids)
            elif choice.token_ids is None and choice.text:
                sink.on_text(choice.index, choice.text)
            if choice.finish_reason is not None:
                if choice.finish_reason in FAILURES:
                    raise EngineError(f"the worker ended with {choice.finish_reason!r}", retryable=True)
                self._finished = True
                sink.on_finish(choice.index, choice.finish_reason, choice.stop_reason)
        if chunk.usage is not None:
            sink.on_usage(_usage(chunk.usage))


class LogprobsCall(VllmCall):
    """A generation whose events also say how likely their tokens were."""

    def handle_event(self, payload: bytes) -> None:
        if payload != b"[DONE]" and self._sink is not None:
            for index, logprobs in read_logprobs(payload):
                self._sink.on_logprobs(index, logprobs)
        super().handle_event(payload)


class WholeCall(LogprobsCall):
    """A generation that comes all at once: log-probabilities of a prompt are not streamed."""

    def __init__(self, sink: Callable[[], TokenSink], token_ids: Sequence[int]) -> None:
        super().__init__(sink)
        self._token_ids = token_ids
        self._whole: list[bytes] = []

    def handle_data(self, data: bytes) -> None:
        self._whole.append(data)

    def on_complete(self) -> None:
        self.on_read_end()
        if self._status == 200 and self._sink is not None:
            body = b"".join(self._whole)
            try:
                self._sink.on_prompt_logprobs(read_prompt_logprobs(body, self._token_ids))
                self.handle_event(body)
            except EngineError as error:
                self._fail(error)
            except msgspec.DecodeError as error:
                self._fail(EngineError(f"the worker's answer cannot be read: {error}", retryable=True))
            self._ended = True
        super().on_complete()


class VllmEngine:
    """One vLLM worker."""

    handoff: HandoffKind = "nixl_pull"

    def __init__(self, url: str, endpoint: Endpoint, on_new_life: Callable[[], None] | None = None) -> None:
        """`on_new_life` is called when answers begin to come from another start of the worker."""
        self.endpoint = endpoint
        self.engine_id: str | None = None
        self.side_channels: set[str] = set()
        """Those that its prefill answers named, HOST:PORT; one a rank."""
        self._on_new_life = on_new_life
        self._pool = ConnectionPool(url)

    def identified(self, engine_id: str, side_channel: str) -> None:
        """See `EngineClient`."""
        if self.engine_id not in (None, engine_id) and self._on_new_life is not None:
            self._on_new_life()
        self.engine_id = engine_id
        self.side_channels.add(side_channel)

    async def start(self, request: EngineRequest, sink: Callable[[], TokenSink]) -> VllmCall:
        call: VllmCall
        delivery = EVERY_CHUNK if request.usage_on_every_chunk else STREAMED
        if request.prompt_logprobs is not None:
            ids = msgspec.json.decode(b"[" + request.token_ids_json + b"]", type=list[int])
            call, delivery = WholeCall(sink, ids), WHOLE
        else:
            call = (VllmCall if request.logprobs is None else LogprobsCall)(sink)
        body = self._body(request, delivery)
        await call.open(self._pool, PATHS[self.endpoint], body, _headers(request), once=request.once)
        return call

    async def prefill(self, request: EngineRequest) -> PrefillAnswer:
        """Not streamed, since a streamed answer never carries the parameters."""
        body = self._body(request, WHOLE)
        raw = await WholeExchange().fetch(self._pool, PATHS[self.endpoint], body, _headers(request))
        try:
            answer = msgspec.json.decode(raw, type=_Prefilled)
        except msgspec.DecodeError as error:
            raise EngineError(f"the worker's answer cannot be read: {error}", retryable=True) from error
        cached = _usage(answer.usage).cached_tokens if answer.usage is not None else None
        return PrefillAnswer(bytes(answer.kv_transfer_params), cached)

    def _body(self, request: EngineRequest, delivery: bytes) -> list[bytes]:
        build = generate_body if self.endpoint == "generate" else completions_body
        return build(request, delivery)

    def close(self) -> None:
        self._pool.close()


def generate_body(request: EngineRequest, delivery: bytes) -> list[bytes]:
    """Body of /inference/v1/generate, in pieces: a long prompt's ids are never copied."""
    sampling = {GENERATE_NAMES.get(name, name): value for name, value in request.sampling.items()}
    if request.logprobs is not None:
        sampling["logprobs"] = b"%d" % request.logprobs
    if request.prompt_logprobs is not None:
        sampling["prompt_logprobs"] = b"%d" % request.prompt_logprobs
    fields = dict(request.top_level)
    if (handle := fields.get(PARAMETERS)) is not None:  # vLLM before 0.32 reads it only there
        extra = msgspec.json.decode(sampling.get("extra_args", b"{}"), type=dict[str, msgspec.Raw])
        sampling["extra_args"] = msgspec.json.encode({**extra, PARAMETERS: msgspec.Raw(handle)})
    if request.constraint is not None:
        sampling["structured_outputs"] = vllm_structured_outputs(request.constraint)
        fields["reasoning_ended"] = b"true"  # the constraint tells of the reasoning itself
    if request.images:
        fields["content_parts"] = msgspec.json.encode(
            [{"type": "image_url", "url": image.uri, "uuid": image.id} for image in request.images]
        )
    fields["sampling_params"] = b"{" + _members(sampling) + b"}"
    return _body(request, delivery, b',"token_ids":[', fields)


def completions_body(request: EngineRequest, delivery: bytes) -> list[bytes]:
    """Body of /v1/completions with ids; control tokens must survive in the text too."""
    fixed = {"return_token_ids": b"true", "skip_special_tokens": b"false"}
    if request.constraint is not None:
        fixed["structured_outputs"] = vllm_structured_outputs(request.constraint)
    if request.logprobs is not None:
        fixed |= {"logprobs": b"%d" % request.logprobs, "return_tokens_as_token_ids": b"true"}
    if request.prompt_logprobs is not None:
        fixed["prompt_logprobs"] = b"%d" % request.prompt_logprobs
    return _body(request, delivery, b',"prompt":[', {**request.top_level, **request.sampling, **fixed})


def _body(request: EngineRequest, delivery: bytes, prompt: bytes, fields: Mapping[str, bytes]) -> list[bytes]:
    head = b'{"model":' + msgspec.json.encode(request.model)
    head += b',"request_id":' + msgspec.json.encode(request.request_id)
    head += b"," + delivery + b","
    return [head, _members(fields), prompt, request.token_ids_json, b"]}"]


def _headers(request: EngineRequest) -> dict[str, str]:
    headers = {"X-Request-Id": request.request_id}
    if request.dp_rank is not None:
        headers["X-data-parallel-rank"] = str(request.dp_rank)
    return headers


def _members(fields: Mapping[str, bytes]) -> bytes:
    return b",".join(msgspec.json.encode(name) + b":" + value for name, value in fields.items())


def _usage(usage: _Usage) -> EngineUsage:
    details = usage.prompt_tokens_details
    return EngineUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens or 0,
        cached_tokens=details.cached_tokens if details is not None else None,
    )
