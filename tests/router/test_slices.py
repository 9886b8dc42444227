"""Batches cut into slices say the same as whole ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.events import AllBlocksCleared, BlockStored, KvEvent
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.messages import WorkerKey
from router.slices import SLICE_BLOCKS, slices
from router.tiers import Tier
from tests.router.wire import removed, state, stored, tokens


def blocks_of(part: list[KvEvent]) -> int:
    return sum(0 if isinstance(event, AllBlocksCleared) else len(event.block_hashes) for event in part)


@given(st.lists(st.integers(0, 3 * SLICE_BLOCKS), max_size=6))
def test_no_slice_is_larger_than_the_limit_and_nothing_is_lost(sizes: list[int]) -> None:
    events: list[KvEvent] = [removed(list(range(size))) for size in sizes]
    parts = list(slices([*events, AllBlocksCleared()]))
    assert all(blocks_of(part) <= SLICE_BLOCKS for part in parts)
    seen = [
        block
        for part in parts
        for event in part
        if hasattr(event, "block_hashes")
        for block in event.block_hashes
    ]
    assert seen == [block for size in sizes for block in range(size)]
    assert isinstance(parts[-1][-1], AllBlocksCleared)


def test_a_long_store_means_the_same_in_parts() -> None:
    count = 2 * SLICE_BLOCKS + 5
    ids = list(range(2 * count))
    extras = {0: b"a", SLICE_BLOCKS + 3: b"b"}
    event = stored(range(10, 10 + count), ids, extras=extras)
    one, other = (PrefixIndex(PrefixHasher(1)) for _ in range(2))
    source, sliced = one.open(WorkerKey("w")), other.open(WorkerKey("w"))
    events = [event, state(list(range(10, 10 + count))), removed([10 + count - 1])]
    one.apply(source, events)
    for part in slices(events):
        other.apply(sliced, part)
    assert one._attention == other._attention
    assert source.groups[0, Tier.DEVICE].held == sliced.groups[0, Tier.DEVICE].held
    assert other.find(tokens([*ids[2:], 1])) == {}


def test_tokens_that_tell_no_places_are_left_out() -> None:
    event = stored(range(2 * SLICE_BLOCKS), range(5))
    pieces = [piece for part in slices([event]) for piece in part]
    assert len(pieces) > 2
    assert all(isinstance(piece, BlockStored) and piece.token_ids == b"" for piece in pieces)
