"""What a request asks of the engine, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from simulator.hashing import Digest
from simulator.kv.parameters import RemoteBlocks
from simulator.output import Plan


class Leg(msgspec.Struct, kw_only=True):
    """A generation that is half of a disaggregated request: prefill keeps its blocks, decode fetches them."""

    request_id: str
    """The engine's own; peers name the blocks by it."""
    keeps: bool = False
    remote: RemoteBlocks | None = None
    answer: dict[str, Any] | None = None
    """A prefill leg's kv_transfer_params, once it has ended."""


class Generation(msgspec.Struct, kw_only=True):
    """One sequence to produce. What the engine found out about it is there once the first step is out."""

    index: int
    token_ids: Sequence[int]
    plan: Plan
    tokens_per_step: int
    step_seconds: float | None = None
    """Seconds before each step, the first included; None is the timing model."""
    salt: str | None = None
    siblings: int = 1
    """Choices that the request asked for."""
    max_tokens: int = 1
    """Most tokens of output, as the request or the context limits it."""
    digests: list[Digest] = []
    cached_tokens: int = 0
    """Prompt tokens that were in the cache."""
    created_tokens: int = 0
    """Prompt tokens that came to be in the cache and were not before."""
    rewrite: Callable[[int], Plan] | None = None
    """The plan for a prompt whose KV has this digest; called once, before output comes out."""
    answer_start: int = 0
    """Prompt tokens before the answer; less than all of them in a request to go on with one."""
    leg: Leg | None = None


class Step(msgspec.Struct, frozen=True):
    """Tokens that came out together; `last` ends its sequence."""

    generation: Generation
    start: int
    ids: list[int]
    last: bool
