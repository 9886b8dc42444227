"""Counts of HTTP exchanges, under the names of the instrumentation that vLLM uses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

UNCOUNTED = ("/metrics", "/health", "/ping", "/load", "/version", "/server_info")
"""Handlers that are asked all the time."""
FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, *(half / 2 for half in range(2, 11)), 7.5, 10, 30, 60)
COARSE = (0.1, 0.5, 1)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpMetrics:
    """A middleware that counts, and what it counted."""

    def __init__(self) -> None:
        self.collector = _Separate()
        registry = self.collector.registry
        by_handler = ["handler"]
        self._requests = Counter(
            "http_requests", "Requests.", ["handler", "method", "status"], registry=registry
        )
        self._request_size = Summary("http_request_size_bytes", "Sizes.", by_handler, registry=registry)
        self._response_size = Summary("http_response_size_bytes", "Sizes.", by_handler, registry=registry)
        self._fine = Histogram(
            "http_request_duration_highr_seconds", "Of all.", buckets=FINE, registry=registry
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "By handler.",
            ["handler", "method"],
            buckets=COARSE,
            registry=registry,
        )

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count one exchange."""
        started = time.perf_counter()
        response = await handler(request)
        route = request.match_info.route.resource
        if route is not None and route.canonical not in UNCOUNTED:
            self._count(request, response, route.canonical, time.perf_counter() - started)
        return response

    def _count(
        self, request: web.Request, response: web.StreamResponse, handler: str, seconds: float
    ) -> None:
        self._requests.labels(handler, request.method, f"{response.status // 100}xx").inc()
        self._request_size.labels(handler).observe(request.content_length or 0)
        self._response_size.labels(handler).observe(response.content_length or 0)
        self._fine.observe(seconds)
        self._coarse.labels(handler, request.method).observe(seconds)


class _Separate(Collector):
    """A registry as a collector of another."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def collect(self) -> Iterable[Metric]:
        """What the registry has."""
        return self.registry.collect()
