"""Counters of the hot path, and their Prometheus form.

prometheus-client costs about a microsecond a call; plain attributes cost next to nothing. They are read when
somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
    *(0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
ROUTING_BUCKETS = (*(0.000_02, 0.000_05, 0.0001, 0.0002, 0.0005), *(0.001, 0.002, 0.005, 0.02, 0.1))


class Histogram:
    """Observations in fixed buckets; seconds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.observe_many(value, 1)

    def observe_many(self, value: float, times: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: upper bound and how many are at or under it."""
        seen, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
        return buckets


class Metrics:
    """What the gateway counts itself; `sources` add what other parts know."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        """(endpoint, status) to finished requests."""
        self.in_flight = 0
        self.client_disconnects = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.stream_failures = 0
        self.continuations = 0
        self.engine_failures: dict[str, int] = {}
        self.first_token = Histogram()
        self.inter_token = Histogram()
        self.prefill_leg = Histogram()
        self.routing = Histogram(ROUTING_BUCKETS)
        self.handoff = Histogram()
        self.handles_dropped = 0
        self.tool_calls = 0
        self.tool_call_violations: dict[str, int] = {}
        """By what is wrong."""
        self.missing_tool_calls = 0
        self.sources: list[Callable[[], Iterable[Metric]]] = []

    def count_request(self, endpoint: str, status: int) -> None:
        key = (endpoint, status)
        self.requests[key] = self.requests.get(key, 0) + 1

    def count_violation(self, kind: str) -> None:
        self.tool_call_violations[kind] = self.tool_call_violations.get(kind, 0) + 1

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Reader(self))
        return generate_latest(registry)


class _Reader(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        requests = CounterMetricFamily(
            "kvgateway_requests", "Finished requests.", labels=["endpoint", "status"]
        )
        for (endpoint, status), count in metrics.requests.items():
            requests.add_metric([endpoint, str(status)], count)
        yield requests
        failures = CounterMetricFamily(
            "kvgateway_engine_failures", "Requests that a worker failed.", labels=["worker"]
        )
        for worker, count in metrics.engine_failures.items():
            failures.add_metric([worker], count)
        yield failures
        violations = CounterMetricFamily(
            "kvgateway_tool_call_violations",
            "Complete tool calls that do not keep to their tool.",
            labels=["kind"],
        )
        for kind, count in metrics.tool_call_violations.items():
            violations.add_metric([kind], count)
        yield violations
        yield GaugeMetricFamily("kvgateway_in_flight_requests", "Requests being served.", metrics.in_flight)
        for name, text, value in (
            (
                "client_disconnects",
                "Clients that left before their answer was complete.",
                metrics.client_disconnects,
            ),
            ("stream_failures", "Streams that broke after their first event.", metrics.stream_failures),
            ("continuations", "Answers that another worker went on with.", metrics.continuations),
            ("handles_dropped", "KV handles that were not used after all.", metrics.handles_dropped),
            ("tool_calls", "Complete tool calls of finished answers.", metrics.tool_calls),
            (
                "missing_tool_calls",
                "Finished answers without a call though one was required.",
                metrics.missing_tool_calls,
            ),
            ("prompt_tokens", "Prompt tokens of finished requests.", metrics.prompt_tokens),
            ("cached_prompt_tokens", "Prompt tokens that workers reported as cached.", metrics.cached_tokens),
            ("output_tokens", "Tokens that workers generated.", metrics.output_tokens),
        ):
            yield CounterMetricFamily(f"kvgateway_{name}", text, value)
        yield _histogram("time_to_first_token_seconds", "Request in to first token.", metrics.first_token)
        yield _histogram("inter_token_seconds", "Time between tokens of a stream.", metrics.inter_token)
        yield _histogram("routing_seconds", "Choosing a worker.", metrics.routing)
        yield _histogram("prefill_leg_seconds", "Prefill leg of a handoff.", metrics.prefill_leg)
        yield _histogram("handoff_seconds", "Prefill's answer to decode's first token.", metrics.handoff)
        for source in metrics.sources:
            yield from source()


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(
        f"kvgateway_{name}", text, buckets=histogram.cumulative(), sum_value=histogram.total
    )
