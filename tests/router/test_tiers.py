"""Blocks in host memory and on disk: they count as cached, and loading them has its cost."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from router.events import AllBlocksCleared, KvEvent
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.lookup import Match
from router.messages import WorkerKey
from router.selector import Router
from router.tiers import Tier
from tests.router.test_selector import info, request
from tests.router.wire import removed, state, stored, tokens

IDS = list(range(100, 121))
"""Ten blocks of two tokens, and a token."""
HOST, DISK = Tier.HOST, Tier.DISK


class Bench:
    def __init__(self, events: Iterable[KvEvent]) -> None:
        self.index = PrefixIndex(PrefixHasher(1))
        self.source = self.index.open(WorkerKey("w"))
        self.feed(*events)

    def feed(self, *events: KvEvent) -> None:
        self.index.apply(self.source, events)

    @property
    def match(self) -> Match:
        return self.index.match(tokens(IDS))

    @property
    def found(self) -> tuple[int, tuple[int, int]]:
        """Usable tokens; of these, those in host memory and on disk."""
        match = self.match
        return match.usable.get(self.source, 0), match.below.get(self.source, (0, 0))


def test_a_block_that_left_the_device_is_found_where_it_went() -> None:
    bench = Bench([stored(range(1, 11), IDS[:20])])
    bench.feed(stored([4, 5, 6], tier=HOST), stored([6, 7], tier=DISK))
    assert bench.found == (20, (0, 0))
    bench.feed(removed(range(4, 11)))
    assert bench.found == (14, (6, 2))
    bench.feed(removed([5]), removed([4], tier=HOST))
    assert bench.found == (6, (0, 0))
    assert bench.index.stats().unknown_removed == 1
    bench.feed(AllBlocksCleared())
    assert bench.found == (0, (0, 0))
    assert not bench.index._lookup.tiered


def test_blocks_of_lower_tiers_may_come_with_tokens_alone() -> None:
    bench = Bench([stored([1], IDS[:2], tier=HOST), stored([2, 3], IDS[2:6], parent=1, tier=DISK)])
    assert bench.found == (6, (2, 4))


def test_a_lower_tiers_hash_that_nothing_explains_waits_and_is_no_flaw() -> None:
    bench = Bench([stored([2], tier=HOST)])
    assert bench.source.problem == ""
    bench.feed(stored([1, 2], IDS[:4]), removed([2]))
    assert bench.found == (4, (2, 0))


def test_a_hybrid_needs_its_state_somewhere_too() -> None:
    bench = Bench([stored(range(1, 6), IDS[:10]), state([2]), stored(range(1, 6), tier=HOST)])
    assert bench.found == (4, (0, 0))
    lower = state([4])
    lower.tier = HOST
    bench.feed(lower)
    assert bench.found == (8, (4, 0))
    bench.feed(removed([3]))
    assert bench.found == (8, (4, 0)), "up to the deepest state on the device, nothing is loaded"
    assert bench.match.predictions(bench.source).state == 8


blocks = st.sets(st.integers(1, 10))


@given(blocks, blocks, blocks)
def test_against_brute_force(device: set[int], host: set[int], disk: set[int]) -> None:
    bench = Bench([stored(range(1, 11), IDS[:20])])
    bench.feed(stored(sorted(host), tier=HOST), stored(sorted(disk), tier=DISK))
    bench.feed(removed([block for block in range(1, 11) if block not in device]))

    def depth(held: set[int]) -> int:
        return next((n for n in range(10) if n + 1 not in held), 10)

    on_device, in_host, anywhere = depth(device), depth(device | host), depth(device | host | disk)
    assert bench.found == (2 * anywhere, (2 * (in_host - on_device), 2 * (anywhere - in_host)))
    bench.index.close(bench.source)
    bench.index.sweep(1_000)
    assert not any(bench.index._lookup.tables.values())


def test_loading_costs_less_than_computing_and_more_than_nothing() -> None:
    router = Router("kv", seed=1)
    for name in ("device", "host", "disk", "none"):
        router.add_worker(info(name))
    long = list(range(20_001))
    for name, tier in (("device", Tier.DEVICE), ("host", HOST), ("disk", DISK)):
        router.apply(WorkerKey(name), [stored(range(10_000), long[:20_000], tier=tier)])
    explanation = router.explain(request(long))
    assert [each.target.worker for each in explanation.candidates] == ["device", "host", "disk", "none"]
    loading = {each.target.worker: each.terms.loading for each in explanation.candidates}
    assert loading == {"device": 0.0, "host": 0.1, "disk": 0.5, "none": 0.0}
    assert router.route(request(long, exclude=frozenset({"device"}))).overlap_tokens == 20_000
