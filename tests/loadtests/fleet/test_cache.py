"""One engine's blocks: counted, bounded, evicted from the tail of what was used longest ago."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtests.fleet.cache import BlockCache, CacheEvent, Hit, Removed, Stored


def fill(cache: BlockCache, *blocks: int, parent: int | None = None) -> None:
    """Allocate and commit blocks, held once."""
    assert cache.allocate(len(blocks))
    cache.commit(blocks, parent)


def test_a_committed_block_is_a_hit_and_is_announced() -> None:
    cache = BlockCache(4)
    fill(cache, 1, 2)
    assert cache.hit((1, 2, 3), 3) == Hit(2, 2)
    assert cache.hit((1, 2, 3), 1) == Hit(1, 1)
    assert cache.hit((2,), 1) == Hit(1, 1)
    assert cache.events == [Stored((1, 2), None)]


def test_the_least_recently_used_goes_first_and_tails_before_heads() -> None:
    cache = BlockCache(4)
    fill(cache, 1, 2)
    cache.release([1, 2])
    fill(cache, 3, 4)
    cache.release([3, 4])
    cache.hold([1])
    cache.release([1])
    cache.events.clear()
    assert cache.allocate(3)
    assert cache.events == [Removed((2, 4, 3))]
    assert 1 in cache


def test_held_blocks_are_never_evicted() -> None:
    cache = BlockCache(2)
    fill(cache, 1, 2)
    assert not cache.allocate(1)
    cache.release([1, 2])
    assert cache.allocate(2)
    assert cache.cached == 0


def test_a_copy_of_a_cached_block_is_given_up() -> None:
    cache = BlockCache(4)
    fill(cache, 1)
    fill(cache, 1, 2)
    assert cache.cached == 2
    assert cache.blank == 2
    assert cache.events == [Stored((1,), None), Stored((2,), 1)]
    cache.release([1, 2])
    cache.release([1])
    assert cache.free == 4


def test_a_hybrid_hit_ends_at_a_state() -> None:
    cache = BlockCache(10, state_blocks=3)
    fill(cache, 1, 2, 3)
    assert cache.hit((1, 2, 3), 3) == Hit(0, 3)
    assert cache.commit_state(2)
    assert cache.hit((1, 2, 3), 3) == Hit(2, 3)
    assert cache.blank == 10 - 3 - 3
    assert not cache.commit_state(2)
    assert cache.events[-1] == Stored((2,), None, state=True)


def test_an_evicted_state_gives_back_its_width() -> None:
    cache = BlockCache(5, state_blocks=3)
    fill(cache, 1)
    assert cache.commit_state(1)
    cache.release([~1])
    cache.release([1])
    cache.events.clear()
    assert cache.allocate(4)
    assert cache.events == [Removed((1,), state=True)]
    assert cache.hit((1,), 1) == Hit(0, 1)


class Mirror:
    """What somebody believes who only sees the events."""

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def apply(self, events: list[CacheEvent]) -> None:
        for event in events:
            keys = {~block if event.state else block for block in event.blocks}
            if isinstance(event, Stored):
                assert not keys & self.keys
                self.keys |= keys
            else:
                assert keys <= self.keys
                self.keys -= keys


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=60))
def test_blocks_are_conserved_and_events_tell_everything(texts: list[tuple[int, int, bool]]) -> None:
    cache = BlockCache(12, state_blocks=2)
    mirror = Mirror()
    held: list[list[int]] = []
    for text, length, keep in texts:
        blocks = [text * 10 + position for position in range(length)]
        usable = cache.hit(blocks, length).usable
        keys = blocks[:usable] + ([~blocks[usable - 1]] if usable else [])
        cache.hold(keys)
        if cache.allocate(length - usable):
            cache.commit(blocks[usable:], blocks[usable - 1] if usable else None)
            keys += blocks[usable:]
            if cache.commit_state(blocks[-1]):
                keys.append(~blocks[-1])
            held.append(keys)
        else:
            cache.release(keys)
        if not keep and held:
            cache.release(held.pop(0))
        mirror.apply(cache.events)
        cache.events = []
        assert cache.blank + cache.cached == cache.capacity
        assert cache.blank >= 0
        assert cache.blank <= cache.free <= cache.capacity
        assert all(key in cache for key in mirror.keys)
    for keys in held:
        cache.release(keys)
    assert cache.free == cache.capacity
