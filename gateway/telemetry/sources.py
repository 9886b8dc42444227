"""What the router, the fleet and the tokenizers know, as Prometheus metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.fleet.feeds import KvFeeds
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import WorkerState
from gateway.serving.dispatch import Dispatcher
from gateway.tokens.encodings import Encodings
from gateway.tokens.tokenizer import Tokenizer
from router.selector import Router
from router.stats import RouterStats, TargetStats

Source = Callable[[], Iterator[Metric]]


_ROUTER_COUNTERS: tuple[tuple[str, str, Callable[[RouterStats], float]], ...] = (
    ("routed", "Placements made.", lambda stats: stats.routed),
    ("refused", "Requests without an eligible worker.", lambda stats: stats.refused),
    (
        "overlap_reports",
        "Requests whose worker reported cached tokens.",
        lambda stats: stats.overlap.reported,
    ),
    ("overlap_exact", "Of these, those predicted to the token.", lambda stats: stats.overlap.exact),
    ("overlap_predicted_tokens", "Cached tokens predicted.", lambda stats: stats.overlap.predicted_tokens),
    ("overlap_reported_tokens", "Cached tokens reported.", lambda stats: stats.overlap.reported_tokens),
    ("prompt_tokens", "Prompt tokens of placements.", lambda stats: stats.choices.prompt_tokens),
    (
        "overlap_chosen_tokens",
        "Cached tokens expected where prompts went.",
        lambda stats: stats.choices.overlap_tokens,
    ),
    (
        "overlap_best_tokens",
        "Cached tokens expected on the eligible rank with most.",
        lambda stats: stats.choices.best_overlap_tokens,
    ),
    ("first_tokens", "First tokens of prefills.", lambda stats: stats.first_tokens.observed),
    (
        "first_token_predicted_seconds",
        "Predicted seconds to first tokens.",
        lambda stats: stats.first_tokens.predicted_seconds,
    ),
    (
        "first_token_observed_seconds",
        "Seconds that passed to first tokens.",
        lambda stats: stats.first_tokens.observed_seconds,
    ),
    (
        "first_token_error_seconds",
        "Sum of the differences, whatever their signs.",
        lambda stats: stats.first_tokens.error_seconds,
    ),
    ("index_orphans", "Blocks that could not be placed.", lambda stats: stats.index.orphans),
    ("index_evictions", "Index entries given up for the memory cap.", lambda stats: stats.index.evictions),
)
_ROUTER_GAUGES: tuple[tuple[str, str, Callable[[RouterStats], float]], ...] = (
    ("reservations", "Open reservations.", lambda stats: stats.open_reservations),
    ("index_blocks", "Entries of the prefix index.", lambda stats: stats.index.blocks),
    ("index_prefixes", "Distinct prefixes of the index.", lambda stats: stats.index.prefixes),
    ("index_unplaced", "Blocks whose prefix nothing has told.", lambda stats: stats.index.unplaced),
)
_RANK_GAUGES: tuple[tuple[str, str, Callable[[TargetStats], float]], ...] = (
    ("sequences", "Requests placed and not released.", lambda rank: rank.sequences),
    ("queued_tokens", "Uncached prompt tokens before their first output.", lambda rank: rank.queued_tokens),
    ("pace", "Seconds of prefill for each predicted by the constants.", lambda rank: rank.pace),
    ("failures_in_a_row", "Failures since the last first token.", lambda rank: rank.failures),
    ("blocks", "Blocks that the index knows of.", lambda rank: rank.indexed_blocks),
    ("assumed_blocks", "Blocks counted as cached without events.", lambda rank: rank.assumed_blocks),
)
_RANK_COUNTERS: tuple[tuple[str, str, Callable[[TargetStats], float]], ...] = (
    ("hit_rule_switches", "Changes of the rule that predicts hits.", lambda rank: rank.hit_rule_switches),
    ("suspect_hits", "Hits that the announced states do not allow.", lambda rank: rank.suspect_hits),
)


def router_metrics(router: Router) -> Source:
    """Placements, overlap predicted against reported, the index, and each rank's load and hit rule."""

    def collect() -> Iterator[Metric]:
        stats = router.snapshot_stats()
        for name, text, value in _ROUTER_COUNTERS:
            yield CounterMetricFamily(f"kvgateway_router_{name}", text, value(stats))
        for name, text, value in _ROUTER_GAUGES:
            yield GaugeMetricFamily(f"kvgateway_router_{name}", text, value(stats))
        yield from _rank_metrics(stats)

    return collect


def _rank_metrics(stats: RouterStats) -> Iterator[Metric]:
    labels = ["worker", "dp_rank"]
    for family, rows in ((GaugeMetricFamily, _RANK_GAUGES), (CounterMetricFamily, _RANK_COUNTERS)):
        for name, text, value in rows:
            metric = family(f"kvgateway_router_worker_{name}", text, labels=labels)
            for rank in stats.targets:
                metric.add_metric([rank.key.worker, str(rank.key.dp_rank)], value(rank))
            yield metric
    rules = GaugeMetricFamily(
        "kvgateway_router_worker_hit_rule", "1 for the rule in use.", labels=[*labels, "rule", "hashing"]
    )
    knowledge = GaugeMetricFamily(
        "kvgateway_router_worker_knowledge",
        "1 for how far what is known of the cache can be trusted.",
        labels=[*labels, "state"],
    )
    for rank in stats.targets:
        own = [rank.key.worker, str(rank.key.dp_rank)]
        rules.add_metric([*own, rank.hit_rule, rank.hashing], 1)
        knowledge.add_metric([*own, rank.knowledge], 1)
    yield rules
    yield knowledge


def serving_metrics(dispatcher: Dispatcher, body_bytes: Callable[[], int]) -> Source:
    """Who waits, what is left of requests whose client has gone, and what would show that something leaks."""
    admission, reaper = dispatcher.admission, dispatcher.reaper

    def collect() -> Iterator[Metric]:
        for name, text, gauge in (
            ("queued_requests", "Requests that wait for a place on a worker.", len(admission)),
            ("pinned_orphans", "KV caches on prefill workers that nobody may come for.", len(reaper.orphans)),
            ("reaping_requests", "Abandoned requests whose KV cache is still being fetched.", len(reaper)),
            ("body_bytes", "Bytes of the request bodies under way.", body_bytes()),
            ("tasks", "asyncio tasks of the process.", len(asyncio.all_tasks())),
        ):
            yield GaugeMetricFamily(f"kvgateway_{name}", text, gauge)
        for name, text, count in (
            ("queued", "Requests that had to wait.", admission.waited),
            ("queue_refused", "Requests that waited too long or found the line full.", admission.refused),
            ("reaped", "KV caches fetched so that their prefill worker lets go of them.", reaper.reaped),
        ):
            yield CounterMetricFamily(f"kvgateway_{name}", text, count)

    return collect


def fleet_metrics(fleet: Fleet, feeds: KvFeeds) -> Source:
    """Which workers are ready, and how their event feeds are."""

    def collect() -> Iterator[Metric]:
        ready = GaugeMetricFamily("kvgateway_worker_ready", "1 when the worker is ready.", labels=["worker"])
        for worker in fleet.workers.values():
            ready.add_metric([worker.name], float(worker.state is WorkerState.READY))
        yield ready
        yield from feeds.metrics()

    return collect


_TOKENIZER_COUNTERS: tuple[tuple[str, str, Callable[[Tokenizer], float]], ...] = (
    ("segment_cache_hits", "Prompt segments whose ids were known.", lambda each: each.cache.hits),
    ("segment_cache_misses", "Prompt segments that were tokenized.", lambda each: each.cache.misses),
    ("prefix_lookups", "Long prompts.", lambda each: each.prefixes.lookups),
    (
        "prefix_reused_tokens",
        "Tokens of long prompts that an earlier turn had joined.",
        lambda each: each.prefixes.reused_tokens,
    ),
)
_TOKENIZER_GAUGES: tuple[tuple[str, str, Callable[[Tokenizer], float]], ...] = (
    ("segment_cache_bytes", "Size of the segment cache.", lambda each: each.cache.bytes_used),
    ("prefix_bytes", "Size of the prompts that are kept joined.", lambda each: each.prefixes.bytes_used),
)


def token_metrics(encodings: Encodings) -> Source:
    """Hits and sizes of the tokenizers' caches; a tokenizer is named by the first pool that uses it."""
    names: dict[Tokenizer, str] = {}
    for encoding in encodings.all:
        names.setdefault(encoding.tokenizer, min(encoding.pools))

    def collect() -> Iterator[Metric]:
        for family, rows in (
            (CounterMetricFamily, _TOKENIZER_COUNTERS),
            (GaugeMetricFamily, _TOKENIZER_GAUGES),
        ):
            for name, text, value in rows:
                metric = family(f"kvgateway_{name}", text, labels=["pool"])
                for tokenizer, pool in names.items():
                    metric.add_metric([pool], value(tokenizer))
                yield metric

    return collect
