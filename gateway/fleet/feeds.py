"""The workers' KV event feeds, from their probed endpoints into the router."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.fleet.worker import Worker
from router.events import BlockStored, KvEvent
from router.feed import KvFeed
from router.messages import WorkerKey
from router.selector import Router
from router.snapshot import Position, SavedSource

COUNTERS = ("batches", "events", "malformed", "connections", "replays", "errors")
SEQUENCE = ("gaps", "restarts")


SAMPLE = 64
"""Of so many batches one is looked at for block sizes; all of the first ones are."""


class _Groups:
    """The block sizes that a rank announces, by KV group, on the way of its events to the router."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._batches = 0
        self.block_sizes: dict[int, int] = {}

    def take(self, key: WorkerKey, events: Sequence[KvEvent]) -> None:
        if self._batches < SAMPLE or not self._batches % SAMPLE:
            for event in events:
                if isinstance(event, BlockStored):
                    self.block_sizes[event.group] = event.block_size
        self._batches += 1
        self._router.apply(key, events)


class KvFeeds:
    """One feed a worker rank; a worker without event endpoints has none."""

    def __init__(self, router: Router, saved: Mapping[WorkerKey, SavedSource] | None = None) -> None:
        """`saved` is of an earlier gateway; each rank's part is good for its first feed."""
        self._router = router
        self._saved = dict(saved or {})
        self._feeds: dict[str, list[KvFeed]] = {}
        self._groups: dict[WorkerKey, _Groups] = {}

    async def start(self, worker: Worker) -> None:
        """Follow the ranks of a worker whose profile is known."""
        assert worker.profile is not None
        keys = [WorkerKey(worker.name, rank) for rank in worker.profile.kv_sources]
        self._groups |= {key: _Groups(self._router) for key in keys}
        feeds = [
            KvFeed(
                key,
                source.endpoint,
                on_events=self._groups[key].take,
                on_clear=self._router.clear,
                on_state=self._router.set_feed_state,
                replay_endpoint=source.replay,
                topic=source.topic,
            )
            for key, source in zip(keys, worker.profile.kv_sources.values(), strict=True)
        ]
        self._feeds[worker.name] = feeds
        for feed in feeds:
            self._resume(feed)
            feed.start()

    def _resume(self, feed: KvFeed) -> None:
        saved = self._saved.pop(feed.key, None)
        if saved is not None and feed.replay_endpoint is not None and self._router.restore(saved):
            feed.resume(saved.position)

    def positions(self) -> Mapping[WorkerKey, Callable[[], Position | None]]:
        """How far each rank's events are applied, to be asked when that matters."""
        feeds = (feed for feeds in self._feeds.values() for feed in feeds)
        return {feed.key: partial(getattr, feed, "position") for feed in feeds}

    async def stop(self, worker: Worker) -> None:
        for feed in self._feeds.pop(worker.name, ()):
            await feed.stop()
            self._groups.pop(feed.key, None)

    def describe(self, name: str) -> list[dict[str, Any]]:
        """State and counters of a worker's feeds, for a person to read."""
        return [
            {
                "dp_rank": feed.key.dp_rank,
                "endpoint": feed.endpoint,
                "state": feed.state.value,
                "reason": feed.reason,
                "block_sizes": self._groups[feed.key].block_sizes,
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
