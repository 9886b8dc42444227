"""Prefill on one worker, decode on another: what carries a prompt's KV cache across.

The bytes go from worker to worker. The gateway carries a handle: opaque, complete, good for one decode of the
prompt it was made for, and only while the prefill worker keeps the blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from gateway.engines.base import EngineClient, EngineRequest, HandoffKind, PrefillAnswer

LEASE_SHARE = 0.7
"""Of the lease a handle may be used for; the rest covers the way to the decode worker and its first read."""


class HandoffError(Exception):
    """A handle cannot be used; the message says why. Nothing has reached a decode worker."""


class Handle:
    """A prefilled prompt's KV cache, as parameters for the decode leg. Gives them out once.

    A worker that is given used, late or foreign parameters answers with status 200 and another prompt's text,
    so nothing else may stand between these checks and the decode worker.
    """

    __slots__ = ("_clock", "_deadline", "_parameters", "_prompt")

    def __init__(
        self,
        parameters: Mapping[str, bytes],
        prompt: bytes,
        lease_seconds: float,
        clock: Callable[[], float],
        since: float | None = None,
    ) -> None:
        """`parameters` are fields of the decode leg's body, as JSON by name; `prompt` identifies the prompt
        (its ids as JSON); `clock` gives seconds. The lease began at `since` at the earliest; None is now."""
        self._parameters: Mapping[str, bytes] | None = parameters
        self._prompt = hash(prompt)
        self._clock = clock
        self._deadline = (clock() if since is None else since) + LEASE_SHARE * lease_seconds

    def take(self, prompt: bytes) -> Mapping[str, bytes]:
        """The parameters, for the decode of `prompt`. Raises HandoffError."""
        parameters, self._parameters = self._parameters, None
        if parameters is None:
            raise HandoffError("the KV handle has been used")
        if hash(prompt) != self._prompt:
            raise HandoffError("the KV handle is of another prompt")
        if self._clock() > self._deadline:
            raise HandoffError("the KV handle is too old to be sure that its blocks are still there")
        return parameters


class PrefillResult(msgspec.Struct, frozen=True):
    """What a prefill leg brought."""

    handle: Handle
    cached_tokens: int | None
    """Prompt tokens that the prefill worker had cached."""
    leg: asyncio.Task[PrefillAnswer] | None = None
    """The leg itself, where it ends only with decode beside it. Cancelling it ends it on the worker."""


class Handoff(Protocol):
    """One protocol of handing over."""

    async def prefill(self, engine: EngineClient, request: EngineRequest) -> PrefillResult:
        """Run the prefill leg, or start it. Raises EngineError."""
        ...


class Handoffs:
    """Hands over as the prefill worker's engine does; see `Handoff`."""

    def __init__(self, by_kind: Mapping[HandoffKind, Handoff]) -> None:
        self._by_kind = by_kind

    async def prefill(self, engine: EngineClient, request: EngineRequest) -> PrefillResult:
        return await self._by_kind[engine.handoff].prefill(engine, request)


def decode_request(request: EngineRequest, handle: Handle) -> EngineRequest:
    """The decode leg of a request. Raises HandoffError."""
    parameters = handle.take(request.token_ids_json)
    return msgspec.structs.replace(request, top_level={**request.top_level, **parameters}, once=True)
