"""What the router, the fleet and the tokenizers know, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.fleet.feeds import KvFeeds
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import WorkerState
from gateway.tokens.encodings import Encodings
from gateway.tokens.tokenizer import Tokenizer
from router.selector import Router

Source = Callable[[], Iterator[Metric]]


def router_metrics(router: Router) -> Source:
    """Placements, overlap predicted against reported, the index, and each rank's load."""

    def collect() -> Iterator[Metric]:
        stats = router.snapshot_stats()
        yield CounterMetricFamily("kvgateway_router_routed", "Placements made.", stats.routed)
        yield CounterMetricFamily(
            "kvgateway_router_refused", "Requests without an eligible worker.", stats.refused
        )
        yield GaugeMetricFamily(
            "kvgateway_router_reservations", "Open reservations.", stats.open_reservations
        )
        for name, value in (
            ("sequences", "sequences"),
            ("queued_tokens", "queued_tokens"),
            ("blocks", "indexed_blocks"),
        ):
            family = GaugeMetricFamily(
                f"kvgateway_router_worker_{name}", f"Each rank's {name}.", labels=["worker", "dp_rank"]
            )
            for target in stats.targets:
                family.add_metric([target.key.worker, str(target.key.dp_rank)], getattr(target, value))
            yield family

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
