"""What a router counts: copies, for metrics."""

from __future__ import annotations

import msgspec

from router.index import IndexStats
from router.load import FirstTokenCounts, OverlapCounts
from router.messages import WorkerKey


class TargetStats(msgspec.Struct, frozen=True):
    """One worker rank."""

    key: WorkerKey
    available: bool
    sequences: int
    waiting: int
    queued_tokens: int
    context_tokens: int
    pace: float
    """Seconds that a prefill takes for each that it should take by the constants."""
    failures: int
    """In a row, the last one not long ago."""
    indexed_blocks: int
    assumed_blocks: int
    """Blocks that it is taken to hold because they were routed there."""
    hit_rule: str
    """How its cached tokens are predicted."""
    hit_rule_switches: int
    suspect_hits: int
    """Reported hits that the states it announced do not allow."""
    hashing: str
    """What its blocks are placed by."""
    knowledge: str
    """How far what is known of its cache can be trusted: exact, degraded or approximate."""
    problem: str
    """Why it is not exact; empty when it is."""


class ChoiceCounts(msgspec.Struct):
    """Sums over all placements, in tokens."""

    prompt_tokens: int = 0
    overlap_tokens: int = 0
    """Expected to be cached where the prompts went."""
    best_overlap_tokens: int = 0
    """The most that an eligible rank was expected to hold."""


class RouterStats(msgspec.Struct, frozen=True):
    """What `Router.snapshot_stats` gives."""

    policy: str
    routed: int
    refused: int
    """Requests without an eligible worker."""
    open_reservations: int
    ignored_releases: int
    """First tokens and releases of reservations that were not open."""
    ignored_events: int
    """Event batches and clears of ranks that were not known."""
    choices: ChoiceCounts
    overlap: OverlapCounts
    first_tokens: FirstTokenCounts
    index: IndexStats
    targets: list[TargetStats]
