"""One sequence's memory: what is written, what a wrong block does, what is noticed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from simulator.groups import Group, parse_groups
from simulator.kv.arena import Arena
from simulator.kv.context import Context

SIZE = 4
TOKENS = random.Random(1).choices(range(163_840), k=400)
HYBRID = "mla+mamba*2+sliding_window:7"


class StubTable:
    """A table as the scheduler would have it, its blocks anywhere in the arena."""

    def __init__(self, group: Group, blocks: list[int]) -> None:
        self.group = group
        self.blocks = blocks


def tables(groups: str, tokens: int, seed: int) -> list[StubTable]:
    """Tables for that many tokens; a state group has a block at its last place only."""
    found = []
    free = random.Random(seed).sample(range(1, 512), 500)
    for group in parse_groups(groups):
        blocks = [free.pop() for _ in range(-(-tokens // SIZE))]
        found.append(StubTable(group, [0] * (len(blocks) - 1) + blocks[-1:] if group.is_state else blocks))
    return found


def computed(groups: str, token_ids: Sequence[int], seed: int = 0, steps: int = 1) -> Context:
    """The memory of a worker that computed all that in so many steps."""
    context = Context(Arena(512, SIZE, 64), tables(groups, len(token_ids), seed), 0)
    for step in range(1, steps + 1):
        context.compute(token_ids, len(token_ids) * step // steps)
    return context


def copied(source: Context, theirs: Sequence[StubTable], groups: str, tokens: int, seed: int) -> Context:
    """Another worker's sequence with the same bytes in other blocks."""
    arena = Arena(512, SIZE, 64)
    mine = tables(groups, tokens, seed)
    for here, there in zip(mine, theirs, strict=True):
        for own, other in zip(here.blocks, there.blocks, strict=True):
            if own:
                arena.blocks[own] = arena_of(source).blocks[other]
    return Context(arena, mine, 0)


def arena_of(context: Context) -> Arena:
    return context._tracks[0].arena


def tables_of(context: Context) -> list[StubTable]:
    return [track.table for track in context._tracks]  # type: ignore[misc]


@pytest.mark.parametrize("groups", ["attention", HYBRID])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 64, 131])
def test_memory_depends_on_the_tokens_alone(groups: str, length: int) -> None:
    ids = TOKENS[:length]
    digest = computed(groups, ids).digest()
    assert computed(groups, ids, seed=5).digest() == digest
    assert computed(groups, [*ids[:-1], ids[-1] + 1]).digest() != digest
    assert computed(groups, [ids[0] + 1, *ids[1:]]).digest() != digest


@pytest.mark.parametrize("steps", [2, 7, 131])
def test_steps_leave_what_one_step_leaves(steps: int) -> None:
    assert (
        computed("attention", TOKENS[:131], steps=steps).digest()
        == computed("attention", TOKENS[:131]).digest()
    )


@pytest.mark.parametrize("groups", ["attention", HYBRID])
def test_a_copy_goes_on_as_the_original(groups: str) -> None:
    source = computed(groups, TOKENS[:50])
    context = copied(source, tables_of(source), groups, 50, seed=9)
    assert context.received(TOKENS, 50) == 0
    assert context.digest() == source.digest()
    context.compute(TOKENS, 51)
    source.compute(TOKENS, 51)
    assert context.digest() == source.digest()
    assert context.wrong_blocks() == source.wrong_blocks() == 0


@pytest.mark.parametrize("place", [0, 5, 12])
def test_a_wrong_block_is_counted_and_changes_the_digest(place: int) -> None:
    source = computed("attention", TOKENS[:50])
    context = copied(source, tables_of(source), "attention", 50, seed=9)
    arena_of(context).blocks[tables_of(context)[0].blocks[place], 0] ^= np.uint64(1)
    assert context.received(TOKENS, 50) == 1
    assert context.wrong_blocks() == 1
    assert context.digest() != source.digest()


def test_what_follows_a_wrong_last_block_is_wrong() -> None:
    source = computed("attention", [*TOKENS[:7], 5])
    context = copied(source, tables_of(source), "attention", 8, seed=9)
    assert context.received(TOKENS, 8) == 1
    tables_of(context)[0].blocks.append(511)
    context.compute(TOKENS, 12)
    assert context.wrong_blocks() == 2
    right = computed("attention", TOKENS[:12])
    assert context.digest() != right.digest()


def test_a_state_with_one_token_too_many_is_wrong() -> None:
    ids = TOKENS[:33]
    source = computed("mla+mamba", ids)
    context = copied(source, tables_of(source), "mla+mamba", 33, seed=9)
    assert context.received(ids, 32) == 1
    context.compute(ids, 33)
    assert context.digest() != computed("mla+mamba", ids).digest()


def test_a_hit_on_a_wrong_block_is_counted_again() -> None:
    source = computed("attention", TOKENS[:8])
    first = copied(source, tables_of(source), "attention", 8, seed=9)
    other = [1, *TOKENS[1:8]]
    assert first.received(other, 8) == 2
    hit = Context(arena_of(first), tables_of(first), 8)
    tables_of(first)[0].blocks.append(511)
    hit.compute([*other, 3, 4], 10)
    assert hit.wrong_blocks() == 3
    assert hit.digest() != computed("attention", [*other, 3, 4]).digest()


def test_a_block_is_right_again_once_it_is_written_anew() -> None:
    arena, mine = Arena(512, SIZE, 64), tables("attention", 8, 1)
    assert Context(arena, mine, 0).received(TOKENS, 8) == 2
    again = Context(arena, mine, 0)
    again.compute(TOKENS, 8)
    assert again.wrong_blocks() == 0
    assert again.digest() == computed("attention", TOKENS[:8]).digest()


def test_a_window_forgets() -> None:
    length = 64
    right = computed("attention+sliding_window:7", TOKENS[:length])
    table = next(table for table in tables_of(right) if table.group.window)
    digest = right.digest()
    assert len(right._tracks[0].needed(length)) == 2
    arena_of(right).wrong[table.blocks[0]] = True
    assert (right.wrong_blocks(), right.digest()) == (0, digest)
    table.blocks[:10] = [0] * 10
    assert right.digest() == digest


def test_sizes_that_cannot_be() -> None:
    for nbytes in (0, 4, 12):
        with pytest.raises(ValueError, match="multiple of 8"):
            Arena(8, 4, nbytes)
