"""What every worker protocol gives the serving layer: start a generation, get token ids called back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from parsers.base import Constraint


class PromptLogprob(NamedTuple):
    """How likely a token of the prompt was after those before it; the first has nothing before it."""

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


class Image(NamedTuple):
    """One image of a prompt."""

    uri: str
    """`data:` with its bytes."""
    id: str
    """The digest of its bytes, by which an engine may know it again."""


class EngineRequest(msgspec.Struct, kw_only=True):
    """One generation, as far as every engine shares it."""

    request_id: str
    """The gateway's own id; a client's never reaches an engine."""
    model: str
    token_ids_json: bytes
    """The prompt's ids, comma-joined, without brackets: what a worker's JSON body needs."""
    prompt_tokens: int
    dp_rank: int | None = None
    usage_on_every_chunk: bool = False
    """The stream may be ended before its end, where usage would come."""
    images: Sequence[Image] = ()
    """In the order of their places among the ids."""
    logprobs: int | None = None
    """Log-probabilities wanted for each token: its own and those of this many alternatives."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens; the answer then comes all at once."""
    sampling: Mapping[str, bytes] = {}
    """Sampling parameters by the names of vLLM's OpenAI API, each value as the JSON text the client sent."""
    top_level: Mapping[str, bytes] = {}
    """Fields beside the sampling parameters (cache_salt, priority, unknown extensions)."""
    constraint: Constraint | None = None
    """What the worker must keep the generated tokens to, from the first one on."""
    once: bool = False
    """It must not reach a worker twice, not even after a connection that was lost before any answer."""


TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
"""As far as it can be handled at all; whether the vocabulary has it is not known here."""
ChoiceIndex = Annotated[int, Meta(ge=0)]


class EngineUsage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None


class TokenLogprob(NamedTuple):
    """How likely a generated token was, and the likeliest ones in its place, best first."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


class TokenSink(Protocol):
    """Receives one generation. Called inside the upstream's `data_received`: never blocks or raises."""

    def on_logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> None:
        """Of the tokens that the next `on_tokens` of this choice brings; only when they were asked for."""
        ...

    def on_prompt_logprobs(self, logprobs: Sequence[PromptLogprob]) -> None:
        """Of the prompt, before anything else; only when they were asked for."""
        ...

    def on_tokens(self, index: int, token_ids: Sequence[int]) -> None: ...

    def on_text(self, index: int, text: str) -> None:
        """Instead of `on_tokens`, from a worker that sends no ids."""
        ...

    def on_finish(self, index: int, reason: str, stop_reason: int | str | None) -> None: ...

    def on_usage(self, usage: EngineUsage) -> None: ...

    def flush(self) -> None:
        """All of one read has been delivered; what is ready can go out in one write."""
        ...


class EngineCall(Protocol):
    """A generation under way."""

    @property
    def done(self) -> asyncio.Future[None]:
        """Resolves when the engine finished the stream properly, else raises EngineError."""
        ...

    def pause(self) -> None:
        """Stop reading from the worker (a slow client)."""
        ...

    def resume(self) -> None: ...

    def abort(self) -> None:
        """Stop the generation on the worker; harmless when it is over."""
        ...


class PrefillAnswer(msgspec.Struct, frozen=True):
    """What a prefill leg answered; its one token is not kept."""

    kv_transfer_params: bytes
    """JSON, as the worker sent it; b"null" when there were none."""
    cached_tokens: int | None


HandoffKind = Literal["nixl_pull", "bootstrap"]
"""How an engine hands a prompt's KV cache to another worker."""


class EngineClient(Protocol):
    """One worker's protocol; token ids in, token ids out."""

    handoff: HandoffKind

    async def start(self, request: EngineRequest, sink: Callable[[], TokenSink]) -> EngineCall:
        """Send the request; returns when the worker accepted it (response headers are in).

        `sink` is called when the request is on its way: what it builds costs no time while the worker is
        busy. Raises EngineError when the worker did not accept it.
        """
        ...

    async def prefill(self, request: EngineRequest) -> PrefillAnswer:
        """Compute the prompt's KV cache and keep it for another worker. Raises EngineError."""
        ...

    def identified(self, engine_id: str, side_channel: str) -> None:
        """A prefill answer told who its worker is, and HOST:PORT of its side channel."""
        ...

    def close(self) -> None: ...


class EngineError(Exception):
    """A worker failed a request.

    `status` is the worker's HTTP status, None when there was no answer. `retryable` says that another worker
    may do better. `lost` says that the connection broke or could not be made, and `unsent` that the worker
    cannot have seen any of the request.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        retryable: bool = False,
        lost: bool = False,
        unsent: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.retryable = retryable
        self.lost = lost
        self.unsent = unsent
        self.attempts = 1
        """On how many workers it was tried."""

    @property
    def blames_worker(self) -> bool:
        """Whether the worker failed, rather than refused what the client asked for."""
        return self.status is None or self.status >= 500
