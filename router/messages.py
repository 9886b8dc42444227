"""The router's value messages. They carry no references: a router can live in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from router.hashing import HashMemo

TokenIds = NDArray[np.uint32]

Role = Literal["aggregated", "prefill", "decode"]
"""What a worker does for a request: all of it, its prompt, or its answer."""


class WorkerKey(msgspec.Struct, frozen=True, order=True):
    """One scheduler with one KV cache: a worker and, inside it, a data-parallel rank."""

    worker: str
    dp_rank: int = 0


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the router must know of a worker before it may be chosen."""

    worker: str
    models: Sequence[str]
    role: Role = "aggregated"
    dp_ranks: int = 1
    adapters: Sequence[str] = ()
    """Those of `models` that are LoRA adapters: their KV caches are apart."""
    max_num_seqs: int | None = None
    labels: Mapping[str, str] = {}
    kv_events: bool = True
    """Whether it publishes its KV events. Of one that does not, what was routed there counts as cached."""
    states_at_ends: bool = False
    """Whether it says of itself that it keeps a hybrid model's states, of which its events do not tell."""
    pool: str = ""
    """Workers of one pool take the same token ids for the same prompt, and hand KV caches to each other."""


class Variant(msgspec.Struct, frozen=True):
    """A prompt as the workers of some pools take it."""

    pools: frozenset[str]
    token_ids: TokenIds
    hashes: HashMemo | None = None


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for a place for one prompt."""

    request_id: str
    model: str
    token_ids: TokenIds
    cache_salt: str | None = None
    lora: str | None = None
    max_tokens: int | None = None
    role: Role = "aggregated"
    """Only workers of this role are eligible."""
    exclude: frozenset[str] = frozenset()
    """Workers that already failed this request."""
    hashes: HashMemo | None = None
    """What was hashed of this prompt's beginning before; a router in another process does without."""
    pools: frozenset[str] | None = None
    """Only workers of these pools are eligible; None for all."""
    variants: Sequence[Variant] = ()
    """Where pools differ in encoding: the prompt by pool, instead of `token_ids` and `pools`."""
    transfer_seconds: Mapping[str, float] = {}
    """By worker: seconds that the prompt's KV cache takes between it and the worker of the other leg, as the
    handoff has measured the link; 0 where it is absent."""
    session: str | None = None
    """Whom requests of a kind come from; the policy `session` keeps them together."""
    labels: Mapping[str, str] = {}
    """Only workers with all of these are eligible."""
    at_once: bool = False
    """Only a rank that runs it at once will do; else `FullError`."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """A reserved place. It must be released exactly once, with `reservation`."""

    reservation: int
    target: WorkerKey
    overlap_tokens: int
    """Prompt tokens that the router expects the worker to hold."""
    best_overlap_tokens: int
    """The largest such number among the eligible workers."""
    pool: str = ""
    """The pool of the target."""
    prefills: bool = True
    """Whether the target computes the prompt itself; a decode worker does where little of it is left."""


class FirstToken(msgspec.Struct, frozen=True):
    """The prefill of a reservation is done; `cached_tokens` as the worker reported it, if it did."""

    reservation: int
    cached_tokens: int | None = None


class Release(msgspec.Struct, frozen=True):
    """A reservation's end, whatever ended it."""

    reservation: int
    output_tokens: int = 0
    cached_tokens: int | None = None
    failed: bool = False
    """Whether the worker failed it (and not the client, or another leg)."""


class NoWorkerError(Exception):
    """No worker is eligible; the message says why each was left out."""


class FullError(NoWorkerError):
    """Every eligible worker runs as many sequences as it can."""
