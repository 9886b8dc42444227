"""The workers' KV event feeds, from their probed endpoints into the router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.fleet.worker import Worker
from router.feed import KvFeed
from router.messages import WorkerKey
from router.selector import Router

COUNTERS = ("batches", "events", "malformed", "connections", "replays", "errors")
SEQUENCE = ("gaps", "restarts")


class KvFeeds:
    """One feed a worker rank; a worker without event endpoints has none."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._feeds: dict[str, list[KvFeed]] = {}

    async def start(self, worker: Worker) -> None:
        """Follow the ranks of a worker whose profile is known."""
        assert worker.profile is not None
        feeds = [
            KvFeed(
                WorkerKey(worker.name, rank),
                source.endpoint,
                on_events=self._router.apply,
                on_clear=self._router.clear,
                on_state=self._router.set_feed_state,
                replay_endpoint=source.replay,
                topic=source.topic,
            )
            for rank, source in worker.profile.kv_sources.items()
        ]
        self._feeds[worker.name] = feeds
        for feed in feeds:
            feed.start()

    async def stop(self, worker: Worker) -> None:
        for feed in self._feeds.pop(worker.name, ()):
            await feed.stop()

    def describe(self, name: str) -> list[dict[str, Any]]:
        """State and counters of a worker's feeds, for a person to read."""
        return [
            {
                "dp_rank": feed.key.dp_rank,
                "endpoint": feed.endpoint,
                "state": feed.state.value,
                "reason": feed.reason,
                **msgspec.to_builtins(feed.counters),
                **msgspec.to_builtins(feed.sequence),
            }
            for feed in self._feeds.get(name, ())
        ]

    def metrics(self) -> Iterator[Metric]:
        """State and counters of all feeds, for Prometheus."""
        labels = ["worker", "dp_rank"]
        state = GaugeMetricFamily(
            "kvgateway_kv_feed_state", "1 for the feed's state.", labels=[*labels, "state"]
        )
        lag = GaugeMetricFamily("kvgateway_kv_feed_lag_seconds", "Age of the last batch.", labels=labels)
        counters = {
            name: CounterMetricFamily(f"kvgateway_kv_feed_{name}", f"The feed's {name}.", labels=labels)
            for name in (*COUNTERS, *SEQUENCE)
        }
        for feed in (feed for feeds in self._feeds.values() for feed in feeds):
            own = [feed.key.worker, str(feed.key.dp_rank)]
            state.add_metric([*own, feed.state.value], 1)
            lag.add_metric(own, feed.counters.lag_seconds)
            for name in COUNTERS:
                counters[name].add_metric(own, getattr(feed.counters, name))
            for name in SEQUENCE:
                counters[name].add_metric(own, getattr(feed.sequence, name))
        yield from (state, lag, *counters.values())
