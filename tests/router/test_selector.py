from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from router.cost import CostConstants
from router.messages import (
    FirstToken,
    NoWorkerError,
    Placement,
    Release,
    RouteRequest,
    WorkerInfo,
    WorkerKey,
)
from router.policy import POLICIES
from router.selector import Router
from tests.router.wire import removed, state, stored, tokens


def info(name: str, **fields: Any) -> WorkerInfo:
    return WorkerInfo(worker=name, **{"models": ["m"], **fields})


def router_of(*names: str, policy: str = "kv", **fields: Any) -> Router:
    router = Router(policy, seed=1)
    for name in names:
        router.add_worker(info(name, **fields))
    return router


def request(ids: range | list[int] = range(100, 111), **fields: Any) -> RouteRequest:
    return RouteRequest(**{"request_id": "r", "model": "m", "token_ids": tokens(ids), **fields})


def place(router: Router, **fields: Any) -> Placement:
    """Route and release at once."""
    placement = router.route(request(**fields))
    router.release(Release(placement.reservation))
    return placement


def refusal(router: Router, **fields: Any) -> str:
    with pytest.raises(NoWorkerError) as caught:
        router.route(request(**fields))
    return str(caught.value)


def test_the_prefix_decides_on_an_idle_fleet() -> None:
    router = router_of("a", "b", "c")
    router.apply(WorkerKey("b"), [stored([1, 2, 3], range(100, 106))])
    router.apply(WorkerKey("c"), [stored([1], range(100, 102))])
    placement = place(router)
    assert placement.target == WorkerKey("b")
    assert (placement.overlap_tokens, placement.best_overlap_tokens) == (6, 6)
    placement = place(router, exclude=frozenset({"b"}))
    assert (placement.target.worker, placement.overlap_tokens, placement.best_overlap_tokens) == ("c", 2, 2)
    assert place(router, cache_salt="s").best_overlap_tokens == 0
    router.apply(WorkerKey("b"), [removed([1, 2, 3])])
    assert place(router).target == WorkerKey("c")


def test_overlap_is_told_under_every_policy() -> None:
    for policy in POLICIES:
        router = router_of("a", policy=policy)
        router.apply(WorkerKey("a"), [stored([1, 2], range(100, 104))])
        assert place(router).overlap_tokens == 4


def test_an_empty_prompt_can_be_placed() -> None:
    assert place(router_of("a"), ids=[]).overlap_tokens == 0


def test_a_hybrid_worker_is_not_overrated() -> None:
    router = router_of("hybrid", "plain")
    router.apply(WorkerKey("hybrid"), [stored([1, 2, 3, 4], range(100, 108)), state([1])])
    router.apply(WorkerKey("plain"), [stored([1, 2], range(100, 104))])
    placement = place(router)
    assert (placement.target.worker, placement.overlap_tokens) == ("plain", 4)


def test_a_burst_of_siblings_spreads() -> None:
    router = router_of("a", "b", "c", "d")
    chosen = Counter(router.route(request()).target.worker for _ in range(12))
    assert chosen == {"a": 3, "b": 3, "c": 3, "d": 3}


def test_an_idle_fleet_takes_turns() -> None:
    router = router_of("a", "b", "c")
    order = [place(router).target.worker for _ in range(6)]
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert order[3:] == order[:3]


def test_new_fleets_do_not_all_begin_with_the_same_worker() -> None:
    firsts = set()
    for seed in range(20):
        router = Router("kv", seed=seed)
        for name in "abc":
            router.add_worker(info(name))
        firsts.add(place(router).target.worker)
    assert firsts == {"a", "b", "c"}


def test_ranks_are_places_of_their_own() -> None:
    router = router_of("a", dp_ranks=2)
    router.apply(WorkerKey("a", 1), [stored([1], [100, 101])])
    assert place(router).target == WorkerKey("a", 1)
    chosen = Counter(router.route(request([1, 2, 3])).target for _ in range(4))
    assert chosen == {WorkerKey("a", 0): 2, WorkerKey("a", 1): 2}
    router.apply(WorkerKey("a", 2), [stored([1], [100, 101])])
    assert router.snapshot_stats().ignored_events == 1


def test_refusals_say_why() -> None:
    router = Router("kv", seed=1)
    assert refusal(router) == "there are no workers"
    router.add_worker(info("a", models=["x"]))
    router.add_worker(info("b", role="prefill"))
    router.add_worker(info("c"))
    router.add_worker(info("d"))
    router.set_available("c", False)
    reasons = refusal(router, exclude=frozenset({"d"}))
    assert reasons == (
        "a: does not serve 'm'; b: its role is 'prefill', not 'aggregated'; c: not available; "
        "d: failed this request already"
    )
    assert place(router, role="prefill").target.worker == "b"
    assert place(router, model="x").target.worker == "a"
    assert router.snapshot_stats().refused == 2


def test_availability_keeps_the_blocks() -> None:
    router = router_of("a", "b")
    router.apply(WorkerKey("a"), [stored([1], [100, 101])])
    router.set_available("a", False)
    assert place(router).target.worker == "b"
    router.set_available("a", True)
    router.set_available("nobody", True)
    assert place(router).target.worker == "a"


def test_full_workers_are_the_last_resort() -> None:
    router = router_of("a", max_num_seqs=2)
    router.add_worker(info("b", max_num_seqs=1))
    router.apply(WorkerKey("a"), [stored([1, 2, 3, 4, 5], range(100, 110))])
    placements = [router.route(request()) for _ in range(3)]
    assert Counter(placement.target.worker for placement in placements) == {"a": 2, "b": 1}
    assert router.route(request()).overlap_tokens in (0, 10)  # all are full: still a place
    for placement in placements:
        router.release(Release(placement.reservation))


def test_removal_forgets_blocks_and_keeps_reservations_releasable() -> None:
    router = router_of("a", "b")
    router.apply(WorkerKey("a"), [stored([1], [100, 101])])
    placement = router.route(request())
    assert placement.target.worker == "a"
    router.remove_worker("a")
    router.remove_worker("a")
    assert router.route(request()).target.worker == "b"
    router.add_worker(info("a"))
    loads = {target.key.worker: target for target in router.snapshot_stats().targets}
    assert loads["a"].sequences == 1  # the worker that came back still runs it
    assert loads["a"].indexed_blocks == 0
    router.release(Release(placement.reservation))
    loads = {target.key.worker: target for target in router.snapshot_stats().targets}
    assert (loads["a"].sequences, loads["a"].queued_tokens) == (0, 0)
    assert router.snapshot_stats().ignored_releases == 0


def test_events_of_unknown_workers_are_counted() -> None:
    router = router_of("a")
    router.apply(WorkerKey("b"), [stored([1], [100, 101])])
    router.clear(WorkerKey("b"))
    assert router.snapshot_stats().ignored_events == 2
    router.apply(WorkerKey("a"), [stored([1], [100, 101])])
    router.clear(WorkerKey("a"))
    assert place(router).overlap_tokens == 0


def test_the_queue_counts_until_the_first_token() -> None:
    router = Router(
        "kv",
        seed=1,
        costs=CostConstants(
            prefill_seconds=0.0,
            prefill_seconds_per_token=1.0,
            prefill_seconds_per_token_pair=0.0,
            decode_seconds_per_sequence=0.001,
            decode_seconds_per_context_token=0.0,
        ),
    )
    router.add_worker(info("a"))
    router.apply(WorkerKey("a"), [stored([1, 2], range(100, 104))])
    placement = router.route(request())
    (load,) = router.snapshot_stats().targets
    assert (load.queued_tokens, load.waiting, load.sequences, load.context_tokens) == (7, 1, 1, 11)
    router.first_token(FirstToken(placement.reservation, cached_tokens=4))
    (load,) = router.snapshot_stats().targets
    assert (load.queued_tokens, load.waiting, load.sequences, load.context_tokens) == (0, 0, 1, 11)
    router.release(Release(placement.reservation, output_tokens=5, cached_tokens=0))
    router.release(Release(placement.reservation))
    stats = router.snapshot_stats()
    assert stats.open_reservations == 0
    assert stats.ignored_releases == 1
    assert (stats.overlap.exact, stats.overlap.reported) == (1, 1)
    assert (stats.policy, stats.routed) == ("kv", 1)


# Prefill and decode workers


def test_a_decode_worker_computes_no_prompt() -> None:
    router = router_of("d", role="decode")
    router.apply(WorkerKey("d"), [stored([1, 2], range(100, 104))])
    placement = router.route(request(role="decode"))
    assert (placement.overlap_tokens, placement.best_overlap_tokens) == (0, 0)
    (load,) = router.snapshot_stats().targets
    assert (load.queued_tokens, load.sequences, load.context_tokens) == (0, 1, 11)
    router.release(Release(placement.reservation))


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (("aggregated",), False),
        (("prefill", "decode"), True),
        (("prefill",), True),
        (("prefill", "aggregated"), False),
        ((), False),
    ],
)
def test_a_pair_is_preferred_where_nothing_else_is(roles: tuple[str, ...], expected: bool) -> None:
    router = Router("kv", seed=1)
    for role in roles:
        router.add_worker(info(role, role=role))
    assert router.prefers_pair(request()) is expected


def test_where_there_are_both_the_cheaper_one_is_preferred() -> None:
    router = Router("kv", seed=1)
    for role in ("aggregated", "prefill", "decode"):
        router.add_worker(info(role, role=role))
    assert not router.prefers_pair(request())  # as many seconds
    router.apply(WorkerKey("prefill"), [stored([1], [100, 101])])
    assert router.prefers_pair(request())
    assert not router.prefers_pair(request(exclude=frozenset({"prefill"})))
    assert not router.prefers_pair(request(transfer_seconds={"decode": 1.0}))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="round_robin"):
        Router("nearest")


def test_routers_without_a_seed_hash_differently() -> None:
    one, other = Router(), Router()
    assert one._index._hasher.root() != other._index._hasher.root()
