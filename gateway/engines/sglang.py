"""SGLang: token ids in, token ids out, by `/generate`.

The answer is always streamed: SGLang notices within 60 ms that the client of a stream has left, and only by a
poll every four seconds that another has. What waits in its queues for a peer's KV cache is ended by
`/abort_request` alone. SGLang takes an abort as a prefix of request ids, so ids here all have one length. Its
own output parsers never see an answer: the ids are parsed by the gateway.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.engines.base import (
    ChoiceIndex,
    EngineError,
    EngineRequest,
    EngineUsage,
    HandoffKind,
    PrefillAnswer,
    PromptLogprob,
    TokenId,
    TokenLogprob,
    TokenSink,
)
from gateway.engines.connection import ConnectionPool
from gateway.engines.constraints import sglang_sampling
from gateway.engines.exchange import WholeExchange
from gateway.engines.parameters import SGLANG_NAMES
from gateway.engines.token_exchange import StreamedError, TokenExchange, stream_error
from gateway.engines.vllm_logprobs import finite
from gateway.engines.worker_message import clean

logger = logging.getLogger(__name__)

GENERATE = "/generate"
ABORT = "/abort_request"
ABORT_SECONDS = 5.0

BOOTSTRAP = ("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank")
TOP_LEVEL = ("cache_salt", *BOOTSTRAP)
"""What may stand beside the sampling parameters; anything else could steer the engine."""


class Bootstrap(msgspec.Struct, frozen=True):
    """A prefill worker's bootstrap server."""

    host: str
    port: int
    dp_size: int = 1


class _Reason(msgspec.Struct, gc=False):
    type: str
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None
    """Of a request that is refused by being aborted."""


class _Logprob(msgspec.Struct, array_like=True, gc=False):
    logprob: float | None
    token_id: int


class _Meta(msgspec.Struct, gc=False):
    finish_reason: _Reason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    output_token_logprobs: list[_Logprob] | None = None
    output_top_logprobs: list[list[_Logprob] | None] | None = None


class _Event(msgspec.Struct, gc=False):
    output_ids: list[TokenId] = []
    meta_info: _Meta | None = None
    index: ChoiceIndex = 0
    error: StreamedError | str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class SglangCall(TokenExchange):
    """One generation."""

    def __init__(self, engine: SglangEngine, rid: str, sink: Callable[[], TokenSink]) -> None:
        super().__init__(sink)
        self.rid = rid
        self._engine = engine
        self._seen: dict[int, int] = {}
        """Tokens by choice."""
        self._usage: dict[int, _Meta] = {}

    def handle_event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._ended = True
            return
        event = _decode(payload)
        if event.error is not None:
            raise stream_error(event.error)
        meta = event.meta_info
        if meta is None:
            raise EngineError("the worker sent an event without meta_info", retryable=True)
        sink = self._sink
        assert sink is not None
        new = self._new_ids(event.index, event.output_ids, meta.completion_tokens)
        if new:
            if meta.output_token_logprobs is not None:
                sink.on_logprobs(event.index, _logprobs(meta, len(new)))
            sink.on_tokens(event.index, new)
        self._usage[event.index] = meta
        if meta.finish_reason is not None:
            self._finish(sink, event.index, meta.finish_reason)

    def _new_ids(self, index: int, ids: list[int], total: int) -> Sequence[int]:
        """Output is cumulative, or, with --incremental-streaming-output, what is new."""
        seen = self._seen.get(index, 0)
        new = ids[seen:] if len(ids) >= total else ids
        self._seen[index] = seen + len(new)
        if seen + len(new) != total:
            raise EngineError(f"the worker's output skips tokens: {seen + len(new)} of {total} came")
        return new

    def _finish(self, sink: TokenSink, index: int, reason: _Reason) -> None:
        if reason.type == "abort":
            code = reason.status_code
            message = f"the worker aborted the request: {clean(reason.message or '')}"
            raise EngineError(message, status=code, retryable=code is None or code >= 500)
        self._finished = True
        sink.on_finish(index, reason.type, reason.matched)
        sink.on_usage(
            EngineUsage(
                prompt_tokens=next(iter(self._usage.values())).prompt_tokens,
                completion_tokens=sum(meta.completion_tokens for meta in self._usage.values()),
                cached_tokens=self._usage[index].cached_tokens,
            )
        )

    def abort(self) -> None:
        if not self.done.done():
            self._engine.abort(self.rid)
        super().abort()


class SglangEngine:
    """One SGLang worker."""

    handoff: HandoffKind = "bootstrap"

    def __init__(
        self, url: str, *, bootstrap: Bootstrap | None = None, low_priority_first: bool = False
    ) -> None:
        """`low_priority_first`: the worker's --schedule-low-priority-values-first."""
        self.endpoint = "sglang"
        self.bootstrap = bootstrap
        """Where decode workers find it, when it is a prefill worker."""
        self._pool = ConnectionPool(url)
        self._low_priority_first = low_priority_first
        self._aborts: set[asyncio.Task[None]] = set()

    async def start(self, request: EngineRequest, sink: Callable[[], TokenSink]) -> SglangCall:
        """Raises EngineError, also for what SGLang cannot do (status 400, the field named)."""
        rid = new_rid(request.request_id)
        call = SglangCall(self, rid, sink)
        body = generate_body(request, rid, low_priority_first=self._low_priority_first)
        try:
            await call.open(self._pool, GENERATE, body, {}, once=request.once)
        except BaseException as error:
            if not (isinstance(error, EngineError) and error.status):
                # It may wait there for its peer, and would go on waiting without us.
                self.abort(rid)
            raise
        return call

    async def prefill(self, request: EngineRequest) -> PrefillAnswer:
        """The prefill leg of a pair; ends when decode has the KV cache. Raises EngineError."""
        usage = _Cached()
        call = await self.start(request, lambda: usage)
        try:
            await call.done
        except BaseException:
            self.abort(call.rid)
            call.cancel()
            raise
        return PrefillAnswer(b"null", usage.cached_tokens)

    def identified(self, engine_id: str, side_channel: str) -> None:
        """SGLang's prefill answers tell nothing of the kind."""

    def abort(self, rid: str) -> None:
        """End a request wherever it is in the worker; in the background, and harmless when it is over."""
        task = asyncio.get_running_loop().create_task(self._abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, rid: str) -> None:
        body = msgspec.json.encode({"rid": rid})
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await WholeExchange().fetch(self._pool, ABORT, [body], {})
        except (EngineError, TimeoutError) as error:
            logger.debug("abort of %s: %s", rid, error)

    def close(self) -> None:
        self._pool.close()


class _Cached:
    """The sink of a prefill leg, whose one token is dropped."""

    cached_tokens: int | None = None

    def on_logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> None: ...

    def on_prompt_logprobs(self, logprobs: Sequence[PromptLogprob]) -> None: ...

    def on_tokens(self, index: int, token_ids: Sequence[int]) -> None: ...

    def on_text(self, index: int, text: str) -> None: ...

    def on_finish(self, index: int, reason: str, stop_reason: int | str | None) -> None: ...

    def on_usage(self, usage: EngineUsage) -> None:
        self.cached_tokens = usage.cached_tokens

    def flush(self) -> None: ...


def new_rid(request_id: str) -> str:
    """An id for one leg: of one length where request ids are, so that none is another's beginning."""
    return f"{request_id}-{secrets.token_hex(4)}"


def generate_body(request: EngineRequest, rid: str, *, low_priority_first: bool = False) -> list[bytes]:
    """Body of /generate, in pieces. Raises EngineError (status 400) for what SGLang has no word for."""
    fields = {name: request.top_level[name] for name in TOP_LEVEL if name in request.top_level}
    fields["sampling_params"] = msgspec.json.encode(_sampling(request))
    if request.logprobs is not None:
        fields |= {"return_logprob": b"true", "top_logprobs_num": b"%d" % request.logprobs}
    if request.images:
        fields["image_data"] = msgspec.json.encode([image.uri for image in request.images])
    if request.dp_rank is not None:
        fields["routed_dp_rank"] = b"%d" % request.dp_rank
    if "priority" in request.top_level:
        priority: int = msgspec.json.decode(request.top_level["priority"])
        fields["priority"] = b"%d" % (priority if low_priority_first else -priority)
    head = b'{"rid":' + msgspec.json.encode(rid) + b',"stream":true,'
    members = b",".join(msgspec.json.encode(name) + b":" + value for name, value in fields.items())
    return [head, members, b',"input_ids":[', request.token_ids_json, b"]}"]


def _sampling(request: EngineRequest) -> Mapping[str, Any]:
    sampling: dict[str, Any] = {}
    for name, value in request.sampling.items():
        theirs = SGLANG_NAMES.get(name, name)
        if theirs is None:
            raise EngineError(f"`{name}` is not known to this worker's engine", status=400, param=name)
        sampling[theirs] = msgspec.Raw(value)
    if request.constraint is not None:
        sampling |= {name: msgspec.Raw(value) for name, value in sglang_sampling(request.constraint).items()}
    return sampling


def _logprobs(meta: _Meta, new: int) -> list[TokenLogprob]:
    """Of the last `new` tokens: like the ids, these lists may be cumulative."""
    own = (meta.output_token_logprobs or [])[-new:]
    tops = (meta.output_top_logprobs or [None] * new)[-new:]
    return [
        TokenLogprob(
            each.token_id, finite(each.logprob), [(t.token_id, finite(t.logprob)) for t in top or ()]
        )
        for each, top in zip(own, tops, strict=False)
    ]
