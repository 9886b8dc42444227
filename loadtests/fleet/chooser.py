"""Choosers: who decides which worker gets a request, and what it is told meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from loadtests.fleet.cache import CacheEvent, Stored
from loadtests.fleet.engine import Engine, Step
from loadtests.fleet.request import Request, token_ids
from loadtests.fleet.timing import Pace
from router.cost import CostConstants
from router.events import BlockRemoved, BlockStored, GroupKind, KvEvent
from router.messages import FirstToken, Release, RouteRequest, WorkerInfo, WorkerKey
from router.selector import Router

MODEL = "model"
STATE_GROUP = 1


class Choice(NamedTuple):
    """Where a request goes."""

    worker: str
    ticket: int
    """Names the request to the chooser from now on."""
    overlap_tokens: int
    """Cached tokens that the chooser expects there."""


class Chooser(Protocol):
    """Times are seconds of simulated time; they never go back."""

    def add_worker(self, worker: str) -> None: ...

    def remove_worker(self, worker: str) -> None: ...

    def choose(self, request: Request, now: float) -> Choice: ...

    def first_token(self, ticket: int, cached_tokens: int, now: float) -> None: ...

    def release(self, ticket: int, output_tokens: int, now: float) -> None: ...

    def apply(self, worker: str, events: Iterable[CacheEvent], now: float) -> None:
        """KV events as they reach the router, late or not at all."""


class Sight(Protocol):
    """A worker as only an oracle may look at it."""

    engine: Engine
    pace: Pace
    step: Step | None
    began: float
    """When the step began."""


Sights = Mapping[str, Sight]
MakeChooser = Callable[[int, int, Sights], Chooser]
"""From a seed, the tokens of a block and the workers by name."""


class RouterChooser:
    """The gateway's own router, driven by its public messages."""

    def __init__(
        self, policy: str, seed: int, block_tokens: int, *, costs: CostConstants | None = None
    ) -> None:
        self._now = 0.0
        self.router = Router(policy, seed, costs=costs, clock=lambda: self._now)
        self._block_tokens = block_tokens

    def add_worker(self, worker: str) -> None:
        self.router.add_worker(WorkerInfo(worker=worker, models=[MODEL]))

    def remove_worker(self, worker: str) -> None:
        self.router.remove_worker(worker)

    def choose(self, request: Request, now: float) -> Choice:
        self._now = now
        tokens = token_ids(request.blocks, request.prompt_tokens, self._block_tokens)
        placement = self.router.route(RouteRequest(request_id="", model=MODEL, token_ids=tokens))
        return Choice(placement.target.worker, placement.reservation, placement.overlap_tokens)

    def first_token(self, ticket: int, cached_tokens: int, now: float) -> None:
        self._now = now
        self.router.first_token(FirstToken(ticket, cached_tokens))

    def release(self, ticket: int, output_tokens: int, now: float) -> None:
        self._now = now
        self.router.release(Release(ticket, output_tokens))

    def apply(self, worker: str, events: Iterable[CacheEvent], now: float) -> None:
        self.router.apply(WorkerKey(worker), [kv_event(event, self._block_tokens) for event in events])


def kv_event(event: CacheEvent, block_tokens: int) -> KvEvent:
    """The event as an engine publishes it: attention's with tokens, states by hash alone."""
    group = STATE_GROUP if event.state else 0
    if not isinstance(event, Stored):
        return BlockRemoved(block_hashes=event.blocks, group=group)
    length = len(event.blocks) * block_tokens
    return BlockStored(
        block_hashes=event.blocks,
        parent=event.parent,
        token_ids=b"" if event.state else token_ids(event.blocks, length, block_tokens).tobytes(),
        block_size=block_tokens,
        group=group,
        kind=GroupKind.STATE if event.state else GroupKind.ATTENTION,
    )
