from __future__ import annotations

from collections.abc import Iterable

import pytest

from router.events import AllBlocksCleared, KvEvent
from router.hashing import PrefixHasher
from router.holdings import Source
from router.index import PrefixIndex
from router.messages import WorkerKey
from tests.router.wire import removed, state, stored, tokens

PROMPT = range(100, 111)  # eleven tokens: five usable blocks of two
BLOCKS = [1, 2, 3, 4, 5]


class Fixture:
    """An index with sources named by letters, asked about one prompt."""

    def __init__(self, max_blocks: int = 1000) -> None:
        self.index = PrefixIndex(PrefixHasher(1), max_blocks)
        self.sources: dict[str, Source] = {}

    def feed(self, name: str, *events: KvEvent) -> None:
        if name not in self.sources:
            self.sources[name] = self.index.open(WorkerKey(name))
        self.index.apply(self.sources[name], events)

    def found(
        self, ids: Iterable[int] = PROMPT, salt: str | None = None, lora: str | None = None
    ) -> dict[str, int]:
        found = self.index.find(tokens(ids), salt, lora)
        return {source.key.worker: usable for source, usable in found.items()}


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_each_source_by_its_own_depth(fixture: Fixture) -> None:
    fixture.feed("a", stored(BLOCKS, range(100, 110)))
    fixture.feed("b", stored([21, 22], range(100, 104)))
    fixture.feed("c", stored([31], [9, 9]))
    assert fixture.found() == {"a": 10, "b": 4}
    assert fixture.found([9, 9, 9]) == {"c": 2}
    assert fixture.found([]) == fixture.found([100]) == fixture.found([100, 101]) == {}


def test_the_last_token_is_never_cached(fixture: Fixture) -> None:
    fixture.feed("a", stored(BLOCKS, range(100, 110)))
    assert fixture.found(range(100, 110)) == {"a": 8}
    assert fixture.found(range(100, 109)) == {"a": 8}
    assert fixture.found(range(100, 111)) == {"a": 10}


def test_a_store_continues_its_parent(fixture: Fixture) -> None:
    fixture.feed("a", stored([1, 2], range(100, 104)), stored([3], [104, 105], parent=2))
    fixture.feed("a", stored([b"d" * 32], [106, 107], parent=3), stored([-5], [108, 109], parent=b"d" * 32))
    assert fixture.found() == {"a": 10}


def test_a_store_on_an_unknown_parent_is_left_out(fixture: Fixture) -> None:
    fixture.feed("a", stored([1], [100, 101]), stored([3, 4], range(104, 108), parent=2))
    assert fixture.found() == {"a": 2}
    assert fixture.index.stats().orphans == 2


def test_a_hole_ends_the_prefix_until_it_is_filled(fixture: Fixture) -> None:
    fixture.feed("a", stored(BLOCKS, range(100, 110)), removed([2]))
    assert fixture.found() == {"a": 2}
    fixture.feed("a", stored([2], [102, 103], parent=1))
    assert fixture.found() == {"a": 10}


def test_a_hash_stored_three_times_needs_three_removals(fixture: Fixture) -> None:
    fixture.feed("a", stored([1], [100, 101]), stored([1], [100, 101]), stored([1], [100, 101]))
    for expected in ({"a": 2}, {"a": 2}, {}):
        fixture.feed("a", removed([1]))
        assert fixture.found() == expected
    fixture.feed("a", removed([1]))
    assert fixture.index.stats().unknown_removed == 1
    assert fixture.index.stats().blocks == 0


def test_two_hashes_of_the_same_prefix_count_apart(fixture: Fixture) -> None:
    # An engine may tell prompts apart by what its events do not show.
    fixture.feed("a", stored([1], [100, 101]), stored([11], [100, 101]), stored([12], [100, 101]))
    for gone, expected in ((1, {"a": 2}), (12, {"a": 2}), (11, {})):
        fixture.feed("a", removed([gone]))
        assert fixture.found() == expected


def test_two_hashes_of_the_same_prefix_in_two_groups_of_a_class(fixture: Fixture) -> None:
    both = [stored([block], [100, 101], group=group) for block in (1, 2) for group in (0, 3)]
    fixture.feed("a", stored([], group=3), *both)
    fixture.feed("a", removed([1], group=0))
    assert fixture.found() == {"a": 2}
    fixture.feed("a", removed([1], group=3))
    assert fixture.found() == {"a": 2}
    fixture.feed("a", removed([2], group=3))
    assert fixture.found() == {}


def test_salts_adapters_and_images_keep_prompts_apart(fixture: Fixture) -> None:
    fixture.feed("plain", stored([1], [100, 101]))
    fixture.feed("salt", stored([1, 2], range(100, 104), cache_salt="t"))
    fixture.feed("lora", stored([1], [100, 101], lora="sql"), stored([2], [102, 103], parent=1, lora="sql"))
    fixture.feed("image", stored([1, 2], range(100, 104), extras={1: b"image"}))
    assert fixture.found() == {"plain": 2, "image": 2}
    assert fixture.found(salt="t") == {"salt": 4}
    assert fixture.found(lora="sql") == {"lora": 4}
    assert fixture.found(salt="t", lora="sql") == {}


def test_block_sizes_come_from_the_events(fixture: Fixture) -> None:
    fixture.feed("two", stored([1, 2], range(100, 104)))
    fixture.feed("three", stored([1, 2, 3], range(100, 109), block_size=3))
    fixture.feed("both", stored([1], [100, 101]), stored([2, 3], range(100, 106), block_size=3))
    assert fixture.found() == {"two": 4, "three": 9, "both": 6}


def test_few_block_sizes_are_believed_of_one_source(fixture: Fixture) -> None:
    for size in range(1, 8):
        fixture.feed("a", stored([size], range(100, 100 + size), block_size=size))
    assert fixture.index.stats().odd_sizes == 3
    fixture.feed("a", stored([50], [], block_size=0))
    assert fixture.found() == {"a": 4}


def test_what_belongs_to_no_worker_does_not_count(fixture: Fixture) -> None:
    fixture.feed("a", stored([1], [100, 101]), stored([2], [102, 103], parent=1, tier=None))
    assert fixture.found() == {"a": 2}
    assert fixture.index.stats().elsewhere == 1


# Hybrid models


def test_a_hit_needs_the_state_at_its_end(fixture: Fixture) -> None:
    fixture.feed("a", state([4]), stored(BLOCKS, range(100, 110)))
    assert fixture.found() == {"a": 8}
    assert fixture.found(range(100, 108)) == {}
    fixture.feed("a", state([2]))
    assert fixture.found(range(100, 108)) == {"a": 4}
    fixture.feed("a", removed([4], group=1))
    assert fixture.found() == {"a": 4}
    fixture.feed("a", removed([2], group=0))
    assert fixture.found() == {}


def test_a_state_may_be_announced_long_before_or_after_its_attention_block(fixture: Fixture) -> None:
    fixture.feed("before", state([2, 77]))
    fixture.feed("before", stored([1, 2], range(100, 104)))
    fixture.feed("after", state([]), stored([1, 2], range(100, 104)))
    assert fixture.found() == {"before": 4}
    fixture.feed("after", state([2]))
    assert fixture.found() == {"before": 4, "after": 4}
    assert fixture.index.stats().unplaced == 1
    fixture.feed("before", removed([77], group=1))
    assert fixture.index.stats().unplaced == 0


def test_a_state_outlives_its_attention_block(fixture: Fixture) -> None:
    fixture.feed("a", stored([1, 2], range(100, 104)), state([2]), removed([2], group=0))
    assert fixture.found() == {}
    fixture.feed("a", stored([2], [102, 103], parent=1))
    assert fixture.found() == {"a": 4}


def test_every_state_group_must_hold_it(fixture: Fixture) -> None:
    fixture.feed("a", state([2]), state([2, 4], group=2), stored(BLOCKS, range(100, 110)))
    assert fixture.found() == {"a": 4}
    fixture.feed("a", state([4]))
    assert fixture.found() == {"a": 8}


def test_a_further_group_of_a_class_voids_what_it_does_not_hold(fixture: Fixture) -> None:
    fixture.feed("a", stored(BLOCKS, range(100, 110)), state([4]))
    assert fixture.found() == {"a": 8}
    fixture.feed("a", state([2], group=2))
    assert fixture.found() == {}
    fixture.feed("a", state([2]))
    assert fixture.found() == {"a": 4}
    fixture.feed("a", stored([1], [100, 101], group=3))
    assert fixture.found() == {}
    fixture.feed("a", stored([2], [102, 103], parent=1, group=3))
    assert fixture.found() == {"a": 4}


def test_a_window_needs_its_last_blocks(fixture: Fixture) -> None:
    # A window of six tokens: the five before the next one lie in three blocks of two.
    fixture.feed("a", stored(BLOCKS, range(100, 110)), state([3, 4, 5], window=6))
    fixture.feed("b", stored(BLOCKS, range(100, 110)), state([1, 2, 4, 5], window=6))
    assert fixture.found() == {"a": 10, "b": 4}
    assert fixture.found(range(100, 109)) == {"b": 4}


def test_window_blocks_larger_than_the_attentions_count_by_the_last(fixture: Fixture) -> None:
    fixture.feed("a", stored(BLOCKS, range(100, 110)), state([2, 4], window=8, block_size=4))
    assert fixture.found() == {"a": 8}


def test_states_and_windows_must_agree(fixture: Fixture) -> None:
    fixture.feed("a", state([2, 5], group=1), state([1, 2, 3], group=2, window=4))
    fixture.feed("a", stored(BLOCKS, range(100, 110)))
    assert fixture.found() == {"a": 4}


def test_attention_blocks_in_a_sparse_event_are_placed_by_value(fixture: Fixture) -> None:
    fixture.feed("a", stored([1, 2], range(100, 104)), stored([2, 9], range(100, 110), group=3))
    assert fixture.index.stats().orphans == 1
    assert fixture.found() == {}
    fixture.feed("a", stored([1], [100, 101], group=3))
    assert fixture.found() == {"a": 4}


# Lives


def test_clearing_forgets_at_once_and_goes_on(fixture: Fixture) -> None:
    fixture.feed("a", stored(BLOCKS, range(100, 110)), state([4]), AllBlocksCleared())
    assert fixture.found() == {}
    fixture.feed("a", stored([1], [100, 101]))
    assert fixture.found() == {"a": 2}
    fixture.index.clear(fixture.sources["a"])
    assert fixture.found() == {}
    assert fixture.index.stats().clears == 2


def test_closing_forgets_at_once_and_its_bit_is_used_again_when_swept(fixture: Fixture) -> None:
    fixture.feed("a", stored(BLOCKS, range(100, 110)), state([4]))
    fixture.feed("b", stored([1], [100, 101]))
    bit = fixture.sources["a"].bit
    fixture.index.close(fixture.sources.pop("a"))
    assert fixture.found() == {"b": 2}
    fixture.feed("c", stored([1, 2], range(100, 104)))
    assert fixture.sources["c"].bit != bit
    fixture.index.sweep(100)
    assert fixture.index.stats().swept_later == 0
    assert fixture.index.stats().prefixes == 2
    fixture.feed("d", stored([7], [9, 9]))
    assert fixture.sources["d"].bit == bit
    assert fixture.found() == {"b": 2, "c": 4}


def test_events_sweep_lost_lives_little_by_little(fixture: Fixture) -> None:
    fixture.feed("a", stored(range(200), range(400)))
    fixture.index.clear(fixture.sources["a"])
    assert fixture.index.stats().swept_later > 100
    for _ in range(4):
        fixture.feed("a", removed([1]))
    assert fixture.index.stats().swept_later == 0
    assert fixture.index.stats().prefixes == 0


def test_the_cap_gives_up_the_newest_of_the_fullest() -> None:
    fixture = Fixture(max_blocks=64)
    fixture.feed("small", stored([1, 2], range(100, 104)))
    fixture.feed("large", stored(range(50), range(100, 200)))
    fixture.feed("large", stored(range(100, 150), range(500, 600)))
    stats = fixture.index.stats()
    assert stats.blocks == 63
    assert stats.evictions == 39
    assert fixture.found() == {"small": 4, "large": 10}
    fixture.feed("large", removed(range(50)), removed(range(100, 150)))
    fixture.feed("small", removed([1, 2]))
    assert fixture.index.stats().blocks == fixture.index.stats().prefixes == 0


# Stores that come before what they go on from


def test_orphans_are_placed_when_their_parent_is(fixture: Fixture) -> None:
    """Also over several stores, in any order; what was removed meanwhile stays away."""
    fixture.feed("a", stored([5, 6], [5, 5, 6, 6], parent=4))
    fixture.feed("a", stored([3, 4], [3, 3, 4, 4], parent=2))
    assert fixture.index.stats().orphans == 4
    prompt = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]
    assert fixture.found(prompt) == {}
    fixture.feed("a", removed([6]))
    fixture.feed("a", stored([1, 2], [1, 1, 2, 2]))
    assert fixture.found(prompt) == {"a": 10}
    assert fixture.index.stats().unplaced == 0
    assert fixture.sources["a"].problem == ""
    assert (fixture.sources["a"].pending, fixture.sources["a"].pending_bytes) == ({}, 0)
    fixture.feed("a", removed([4]))
    assert fixture.found(prompt) == {"a": 6}


def test_few_orphans_are_kept(fixture: Fixture) -> None:
    ids = range(500_000)
    for number in range(1, 5):
        fixture.feed("a", stored([number], ids, parent=1000 + number, block_size=len(ids)))
    assert list(fixture.sources["a"].pending) == [1003, 1004]
    assert fixture.sources["a"].pending_bytes == 4 * 2 * len(ids)


def test_many_sources_and_those_that_left() -> None:
    """Of a hot prefix that is held by more sources than are looked at one by one."""
    index = PrefixIndex(PrefixHasher(9))
    sources = [index.open(WorkerKey("w", rank)) for rank in range(100)]
    for rank, source in enumerate(sources):
        depth = 40 if rank % 30 == 0 else 20
        index.apply(source, [stored(range(1, depth + 1), range(2 * depth))])
    for rank in (2, 30, 99):
        index.close(sources[rank])
    gone = {2, 30, 99}
    expected = {s: 80 if r % 30 == 0 else 40 for r, s in enumerate(sources) if r not in gone}
    assert index.find(tokens(range(100))) == expected
    assert index.find(tokens(range(30))) == dict.fromkeys(expected, 28)
