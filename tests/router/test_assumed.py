"""Ranks that tell nothing: what was routed there counts as cached, until reports or age say otherwise."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from router.assumed import BLOCK, Assumed, AssumedLimits
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.messages import FirstToken, Release, WorkerKey
from router.selector import Router
from router.sequencer import FeedState
from tests.router.test_selector import info, request
from tests.router.wire import stored, tokens

LONG = list(range(1_000, 1_000 + 40 * BLOCK + 1))
OTHER = list(range(90_000, 90_000 + 40 * BLOCK + 1))


class Bench:
    def __init__(self, seconds: float = 100.0, blocks: int = 1_000) -> None:
        self.index = PrefixIndex(PrefixHasher(1))
        limits = AssumedLimits(seconds=seconds, tokens=blocks * BLOCK)
        self.assumed = Assumed(self.index, self.index.open(WorkerKey("w")), limits)
        self.number = 0

    def run(self, ids: list[int], now: float, reported: int | None = None) -> None:
        self.number += 1
        chain = self.index.chain(tokens(ids), BLOCK)
        while chain.grow():
            pass
        self.assumed.placed(self.number, chain.hashes, now)
        self.assumed.ended(self.number, reported)
        assert self.assumed.source.blocks == len(self.assumed)

    def found(self, ids: list[int]) -> int:
        return self.index.find(tokens(ids)).get(self.assumed.source, 0) // BLOCK


def test_what_was_routed_counts_and_is_forgotten_with_age() -> None:
    bench = Bench(seconds=10.0)
    bench.run(LONG, now=0.0)
    bench.run(OTHER, now=5.0)
    assert (bench.found(LONG), bench.found(OTHER), bench.found([1, *LONG])) == (40, 40, 0)
    bench.assumed.expire(11.0)
    assert (bench.found(LONG), bench.found(OTHER)) == (0, 40)
    bench.run(OTHER, now=14.0)
    bench.assumed.expire(16.0)
    assert bench.found(OTHER) == 40


def test_what_was_used_longest_ago_makes_room_its_end_first() -> None:
    bench = Bench(blocks=64)
    bench.run(LONG, now=0.0)
    bench.run(OTHER, now=1.0)
    assert (bench.found(OTHER), bench.found(LONG), len(bench.assumed)) == (40, 24, 64)


def test_a_report_of_less_tells_what_has_gone_and_how_much_fits() -> None:
    bench = Bench()
    for number in range(10):
        bench.run([number, *LONG], now=float(number))
    assert len(bench.assumed) == 400
    bench.run([2, *LONG], now=20.0, reported=0)
    assert [bench.found([number, *LONG]) for number in range(10)] == [0, 0, 40, *[40] * 7]
    assert bench.assumed.capacity == 320
    bench.run([9, *LONG], now=21.0, reported=40 * BLOCK)
    assert bench.assumed.capacity == 325


def test_a_shortfall_that_younger_blocks_show_too_is_no_eviction() -> None:
    """A hybrid without events keeps states only here and there."""
    bench = Bench()
    bench.run(OTHER, now=0.0)
    bench.run(LONG, now=50.0)
    bench.run(OTHER, now=60.0, reported=40 * BLOCK)
    bench.run(LONG, now=61.0, reported=0)
    assert bench.found(OTHER) == bench.found(LONG) == 40
    assert bench.assumed.borne_out == pytest.approx(0.9)


def test_the_rest_of_an_engines_larger_block_is_no_eviction() -> None:
    bench = Bench()
    bench.run(OTHER, now=0.0)
    for now in (1.0, 2.0):
        bench.run(LONG, now=now, reported=None if now == 1.0 else 1_536)
    assert bench.found(OTHER) == 40


def test_the_capacity_of_an_engine_is_found() -> None:
    """An engine with 200 blocks, LRU: the share of exact predictions goes up."""
    random = Random(5)
    bench = Bench(seconds=1e9, blocks=10_000)
    engine: OrderedDict[int, None] = OrderedDict()
    exact = [0, 0]
    for turn in range(2_000):
        number = random.randrange(12)
        predicted = bench.found([number, *LONG])
        blocks = [40 * number + place for place in range(40)]
        cached = 0
        while cached < 40 and blocks[cached] in engine:
            cached += 1
        exact[turn >= 1_000] += predicted == cached
        for block in reversed(blocks):
            engine[block] = None
            engine.move_to_end(block)
        while len(engine) > 200:
            engine.popitem(last=False)
        bench.run([number, *LONG], float(turn), cached * BLOCK)
    assert 190 <= bench.assumed.capacity <= 240
    assert exact[1] > 750


def routed(router: Router, ids: list[int], cached: int | None = None) -> int:
    placement = router.route(request(ids))
    router.first_token(FirstToken(placement.reservation, cached))
    router.release(Release(placement.reservation))
    return placement.overlap_tokens


def test_a_worker_without_events_is_approximate_and_gets_what_it_had() -> None:
    router = Router("kv", seed=1)
    router.add_worker(info("told"))
    router.add_worker(info("silent", kv_events=False))
    router.set_available("told", False)
    assert routed(router, LONG) == 0
    router.set_available("told", True)
    explanation = router.explain(request(LONG))
    assert explanation.chosen == WorkerKey("silent")
    assert {each.target.worker: each.knowledge for each in explanation.candidates} == {
        "told": "exact",
        "silent": "approximate",
    }
    assert routed(router, LONG, cached=40 * BLOCK) == 40 * BLOCK
    stats = {target.key.worker: target for target in router.snapshot_stats().targets}
    assert (stats["silent"].knowledge, stats["silent"].assumed_blocks) == ("approximate", 40)
    assert stats["silent"].problem == "it publishes no KV events"
    assert router.snapshot_stats().overlap.exact == 1


def test_predictions_for_who_is_not_exact_shrink_with_the_reports() -> None:
    router = Router("kv", seed=1)
    router.add_worker(info("silent", kv_events=False))
    routed(router, LONG)
    for _ in range(40):
        routed(router, LONG, cached=20 * BLOCK)
    assert routed(router, LONG) == pytest.approx(20 * BLOCK, rel=0.05)


def test_an_exact_feed_ends_the_assumptions_and_a_lost_one_begins_them() -> None:
    router = Router("kv", seed=1)
    router.add_worker(info("w"))
    key = WorkerKey("w")
    router.set_feed_state(key, FeedState.APPROXIMATE, "no event seen yet")
    routed(router, LONG)
    assert routed(router, LONG) == 40 * BLOCK
    router.set_feed_state(key, FeedState.EXACT)
    assert routed(router, LONG) == 0
    router.apply(key, [stored([1, 2], range(1_000, 1_004))])
    assert routed(router, LONG) == 4
    router.set_feed_state(key, FeedState.DEGRADED, "2 batches are lost")
    assert routed(router, LONG) == 4
    (target,) = router.snapshot_stats().targets
    assert (target.knowledge, target.problem) == ("degraded", "2 batches are lost")
    router.set_feed_state(key, FeedState.APPROXIMATE, "not connected")
    router.clear(key)
    assert routed(router, LONG) == 0
    assert routed(router, LONG) == 40 * BLOCK
    router.remove_worker("w")
    assert router.snapshot_stats().index.blocks == 0
    router.set_feed_state(key, FeedState.EXACT)


def test_a_worker_whose_blocks_cannot_be_placed_is_approximate_with_the_reason() -> None:
    router = Router("kv", seed=1)
    router.add_worker(info("w"))
    router.apply(WorkerKey("w"), [stored([1], [5, 6])])
    router.apply(WorkerKey("w"), [stored([10 + n], [n, n], parent=1_000 + n) for n in range(3)])
    (target,) = router.snapshot_stats().targets
    assert target.knowledge == "approximate"
    assert "3 blocks cannot be placed" in target.problem
    assert "not of a known recipe" in target.problem
    routed(router, LONG)
    assert routed(router, LONG) == 40 * BLOCK
    router.apply(WorkerKey("w"), [stored([20 + n, 30 + n], [n, n, n, n]) for n in range(3)])
    (target,) = router.snapshot_stats().targets
    assert target.knowledge == "degraded"
