"""What a choice is made from: the ranks that may be chosen, and the prompt at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from router.assumed import Assumed
from router.holdings import Source
from router.load import Load
from router.lookup import Below
from router.messages import WorkerInfo, WorkerKey
from router.sequencer import FeedState


class Target:
    """One worker rank that may be chosen."""

    __slots__ = (
        "assumed",
        "capacity",
        "feed",
        "feed_reason",
        "info",
        "key",
        "labels",
        "last_used",
        "load",
        "source",
        "unverified",
    )

    def __init__(
        self, info: WorkerInfo, key: WorkerKey, load: Load, source: Source, last_used: float
    ) -> None:
        self.info = info
        self.labels = frozenset(info.labels.items())
        self.key = key
        self.load = load
        self.source = source
        self.last_used = last_used
        """Number of the last route that chose it; unused ranks have negative numbers in random order."""
        self.capacity: float = float("inf") if info.max_num_seqs is None else info.max_num_seqs
        """Sequences that the rank runs at once; more would wait in its queue."""
        self.feed = FeedState.EXACT if info.kv_events else FeedState.APPROXIMATE
        """Of its KV events."""
        self.feed_reason = "" if info.kv_events else "it publishes no KV events"
        self.unverified = False
        """What its source holds was restored, and nothing has shown yet that the worker still does."""
        self.assumed: Assumed | None = None
        """What it is taken to hold while nothing tells; kept by `Beliefs` alone."""

    @property
    def knowledge(self) -> tuple[FeedState, str]:
        """How far what is known of its cache can be trusted, and why not wholly."""
        problem = self.source.problem
        if not problem or self.feed is FeedState.APPROXIMATE:
            return self.feed, self.feed_reason
        state = FeedState.APPROXIMATE if self.source.mostly_lost else FeedState.DEGRADED
        return state, "; ".join(filter(None, (problem, self.feed_reason)))


Overlaps = Mapping[Source, int]
"""Usable cached tokens of the prompt at hand; absent is 0."""


class Ask(NamedTuple):
    """One prompt that is to be placed."""

    prompt_tokens: int
    overlaps: Overlaps
    """What each rank holds, or will once it has done what it was given."""
    now: float = 0.0
    """Seconds, by the router's clock."""
    price: float = 0.0
    """Seconds that a second of prefill costs those who come later."""
    transfer: Mapping[str, float] = {}
    """Seconds by worker; see `RouteRequest.transfer_seconds`."""
    loading: Mapping[Source, Below] = {}
    """What of the prompt is cached on lower tiers."""
