"""Counters to what Prometheus scrapes."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.telemetry.metrics import Histogram, Metrics
from gateway.telemetry.sources import router_metrics
from router.messages import Release, RouteRequest, WorkerInfo
from router.selector import Router


def test_a_value_counts_in_its_bucket_and_every_larger_one() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.total == 12.0


def test_many_equal_values_count_as_often() -> None:
    one, many = Histogram(), Histogram()
    for _ in range(5):
        one.observe(0.02)
    many.observe_many(0.02, 5)
    assert one.counts == many.counts
    assert one.total == pytest.approx(many.total)


def test_requests_are_told_apart_by_endpoint_and_status() -> None:
    metrics = Metrics()
    for status in (200, 200, 400):
        metrics.count_request("/x", status)
    text = metrics.exposition().decode()
    assert 'kvgateway_requests_total{endpoint="/x",status="200"} 2.0' in text
    assert 'kvgateway_requests_total{endpoint="/x",status="400"} 1.0' in text


def test_the_router_shows_predicted_against_reported_overlap_and_each_ranks_rule() -> None:
    router, metrics = Router("kv", seed=1), Metrics()
    metrics.sources.append(router_metrics(router))
    router.add_worker(WorkerInfo(worker="w", models=("m",)))
    placement = router.route(RouteRequest(request_id="r", model="m", token_ids=np.arange(9, dtype=np.uint32)))
    open_text = metrics.exposition().decode()
    router.release(Release(placement.reservation, cached_tokens=0))
    text = metrics.exposition().decode()
    assert "kvgateway_router_reservations 1.0" in open_text
    assert "kvgateway_router_reservations 0.0" in text
    assert "kvgateway_router_overlap_exact_total 1.0" in text
    assert "kvgateway_router_prompt_tokens_total 9.0" in text
    assert "kvgateway_router_overlap_best_tokens_total 0.0" in text
    assert "kvgateway_router_first_token_error_seconds_total 0.0" in text
    assert 'kvgateway_router_worker_pace{dp_rank="0",worker="w"} 1.0' in text
    assert "kvgateway_routing_seconds_count" in text
    assert 'kvgateway_router_worker_knowledge{dp_rank="0",state="exact",worker="w"} 1.0' in text
    assert 'kvgateway_router_worker_hit_rule{dp_rank="0",hashing=' in text
