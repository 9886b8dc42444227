"""Pools that take different ids for the same prompt."""

from __future__ import annotations

from typing import Any

import pytest

from router.hashing import HashMemo
from router.messages import NoWorkerError, Placement, Release, RouteRequest, Variant, WorkerInfo, WorkerKey
from router.selector import Router
from tests.router.wire import stored, tokens

LONG, SHORT = range(100, 140), range(500, 530)
"""The same prompt in two encodings, of 40 and 30 tokens."""


def router_of(**pools: str) -> Router:
    router = Router(seed=1)
    for name, pool in pools.items():
        router.add_worker(WorkerInfo(worker=name, models=["m"], pool=pool))
    return router


def request(**fields: Any) -> RouteRequest:
    variants = [
        Variant(frozenset({"long"}), tokens(LONG), HashMemo()),
        Variant(frozenset({"short", "short too"}), tokens(SHORT)),
    ]
    return RouteRequest(
        request_id="r", model="m", **{"token_ids": tokens(LONG), "variants": variants, **fields}
    )


def place(router: Router, **fields: Any) -> Placement:
    placement = router.route(request(**fields))
    router.release(Release(placement.reservation))
    return placement


def test_the_uncached_tokens_of_each_pools_own_ids_decide() -> None:
    router = router_of(a="long", b="short")
    assert place(router).pool == "short"
    router.apply(WorkerKey("a"), [stored(range(1, 13), range(100, 124))])  # 16 of 40 are left to compute
    placement = place(router)
    assert (placement.pool, placement.overlap_tokens, placement.best_overlap_tokens) == ("long", 24, 24)
    router.apply(WorkerKey("b"), [stored(range(1, 11), range(500, 520))])  # 10 of 30
    placement = place(router)
    assert (placement.pool, placement.overlap_tokens, placement.best_overlap_tokens) == ("short", 20, 24)


def test_a_worker_that_holds_another_pools_ids_holds_nothing_of_use() -> None:
    router = router_of(b="short")
    router.apply(WorkerKey("b"), [stored(range(1, 13), range(100, 124))])
    assert place(router).overlap_tokens == 0


def test_a_reservation_counts_the_tokens_of_its_own_pool() -> None:
    router = router_of(b="short too")
    router.route(request())
    (target,) = router.snapshot_stats().targets
    assert (target.queued_tokens, target.context_tokens) == (30, 30)


def test_a_pool_that_none_of_the_variants_is_for_is_left_out_and_named() -> None:
    router = router_of(a="other")
    with pytest.raises(NoWorkerError, match="its pool is 'other', not one of long, short, short too"):
        router.route(request())


def test_without_variants_a_request_can_be_kept_to_pools() -> None:
    router = router_of(a="x", b="y")
    for _ in range(3):
        assert place(router, variants=(), pools=frozenset({"y"})).pool == "y"


def test_decode_goes_where_the_pool_has_prefill_too() -> None:
    router = Router(seed=1)
    for name, role, pool in (
        ("d1", "decode", "long"),
        ("d2", "decode", "short"),
        ("p2", "prefill", "short"),
    ):
        router.add_worker(WorkerInfo(worker=name, models=["m"], role=role, pool=pool))  # type: ignore[arg-type]
    for _ in range(3):
        placement = place(router, role="decode")
        assert (placement.target.worker, placement.overlap_tokens) == ("d2", 0)
    assert router.prefers_pair(request())
