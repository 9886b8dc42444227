"""What the router and the fleet know, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.fleet.feeds import KvFeeds
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import WorkerState
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
