"""The hybrid rule against its definition, tried at every depth."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from simulator.groups import Group, parse_groups
from simulator.hashing import Digest, chain, root_digest
from simulator.matching import Matcher
from simulator.pool import NULL, BlockPool

SIZE = 4
LENGTH = 12
DIGESTS = chain(root_digest("0"), list(range(LENGTH * SIZE)), SIZE)


def _goes_on(pool: BlockPool, index: int, group: Group, depth: int) -> bool:
    """Whether a group has what a request needs that begins after `depth` blocks."""
    first = 0 if group.is_full else max(depth - group.tail(SIZE), 0)
    return all(pool.find([index], DIGESTS[place]) is not None for place in range(first, depth))


def _depths(pool: BlockPool, groups: Sequence[Group], limit: int) -> list[int]:
    return [
        depth
        for depth in range(limit + 1)
        if all(_goes_on(pool, index, group, depth) for index, group in enumerate(groups))
    ]


def _hold_some(rng: random.Random, pool: BlockPool, groups: Sequence[Group]) -> None:
    full = rng.randrange(LENGTH + 1)
    for index, group in enumerate(groups):
        for place in range(full if group.is_full else LENGTH):
            if group.is_full or rng.random() < 0.7:
                pool.hold(pool.allocate(1)[0][0], index, DIGESTS[place])


@pytest.mark.parametrize(
    "text",
    [
        "attention",
        "attention+mamba",
        "mla+mamba*2",
        "attention+sliding_window:9",
        "attention+sliding_window:2",
    ],
)
def test_the_deepest_place_at_which_all_groups_can_go_on(text: str) -> None:
    groups = parse_groups(text)
    for seed in range(200):
        rng = random.Random(seed)
        pool = BlockPool(200, len(groups))
        _hold_some(rng, pool, groups)
        limit = rng.randrange(LENGTH + 1)
        hit = Matcher(pool, groups, SIZE).match(DIGESTS, limit)
        assert hit.depth == max(_depths(pool, groups, limit))
        alone = max(_depths_of_full(pool, groups, limit))
        assert hit.junction == (alone if alone > hit.depth else 0)
        _check_tables(pool, groups, hit.blocks, hit.depth)


def _depths_of_full(pool: BlockPool, groups: Sequence[Group], limit: int) -> list[int]:
    last = len(groups) - 1
    return [depth for depth in range(limit + 1) if _goes_on(pool, last, groups[last], depth)]


def _check_tables(
    pool: BlockPool, groups: Sequence[Group], tables: Sequence[Sequence[int]], depth: int
) -> None:
    """Each group's table holds what the group needs, at its place, and nothing else."""
    for index, (group, table) in enumerate(zip(groups, tables, strict=True)):
        needed = depth if group.is_full else min(group.tail(SIZE), depth)
        held = [None if block == NULL else pool.held(block) for block in table]
        wanted: list[tuple[int, Digest] | None] = [None] * (depth - needed)
        assert held == wanted + [(index, digest) for digest in DIGESTS[depth - needed : depth]]


def test_two_sparse_kinds_follow_each_other_down() -> None:
    groups = parse_groups("attention+mamba+sliding_window:9")
    pool = BlockPool(100, 3)
    for place in range(6):
        pool.hold(pool.allocate(1)[0][0], 2, DIGESTS[place])
    for index, places in ((0, (1, 5)), (1, (0, 1, 3, 5))):
        for place in places:
            pool.hold(pool.allocate(1)[0][0], index, DIGESTS[place])
    hit = Matcher(pool, groups, SIZE).match(DIGESTS, 10)
    assert (hit.depth, hit.junction) == (2, 6)
