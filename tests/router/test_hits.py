from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.hashing import PrefixChain
from router.hits import Depth, contiguous, ending_in_run, satisfying_all
from router.holdings import Table
from tests.router.wire import tokens

SOURCES = 4
LENGTH = 20
FIRST_STRIDE = 8
masks = st.lists(st.integers(0, 2**SOURCES - 1), min_size=LENGTH, max_size=LENGTH)
often = st.lists(st.sampled_from([15, 15, 15, 7, 14, 11, 0]), min_size=LENGTH, max_size=LENGTH)
depth_lists = st.lists(st.integers(0, LENGTH), min_size=SOURCES, max_size=SOURCES)
HASHES = list(range(1000, 1000 + LENGTH))


def table_of(held: list[int]) -> Table:
    return {prefix: mask for prefix, mask in zip(HASHES, held, strict=True) if mask}


def as_depths(by_source: list[int]) -> list[Depth]:
    """What the functions exchange, from one depth a source."""
    by_depth: dict[int, int] = {}
    for source, depth in enumerate(by_source):
        if depth:
            by_depth[depth] = by_depth.get(depth, 0) | 1 << source
    return sorted(by_depth.items(), reverse=True)


def holds(held: list[int], source: int, depth: int) -> bool:
    return bool(held[depth - 1] >> source & 1)


def run_ends(held: list[int], source: int, depth: int, span: int) -> bool:
    return all(holds(held, source, end) for end in range(depth, max(0, depth - span), -1))


@given(often, st.integers(0, 2**SOURCES - 1), st.integers(0, FIRST_STRIDE))
def test_contiguous_over_few_blocks_with_holes(held: list[int], mask: int, length: int) -> None:
    chain = PrefixChain(tokens(range(LENGTH)), 1, 5, length)
    whole = PrefixChain(tokens(range(LENGTH)), 1, 5)
    while whole.grow():
        pass
    table = {prefix: members for prefix, members in zip(whole.hashes, held, strict=True) if members}
    expected = []
    for source in range(SOURCES):
        depth = 0
        while mask >> source & 1 and depth < length and holds(held, source, depth + 1):
            depth += 1
        expected.append(depth)
    assert contiguous(chain, table, mask) == as_depths(expected)


def test_contiguous_hashes_no_deeper_than_twice_the_deepest() -> None:
    chain = PrefixChain(tokens(range(10_000)), 1, 5)
    probe = PrefixChain(tokens(range(10_000)), 1, 5)
    while len(probe.hashes) < 100:
        probe.grow()
    assert contiguous(chain, dict.fromkeys(probe.hashes[:100], 1), 1) == [(100, 1)]
    assert len(chain.hashes) <= 200


class CountingTable(Table):
    probes = 0

    def get(self, prefix: int, default: int = 0) -> int:  # type: ignore[override]
        self.probes += 1
        return super().get(prefix, default)


DEEP = PrefixChain(tokens(range(2000)), 1, 5)
while DEEP.grow():
    pass


def nested(depths: list[int]) -> CountingTable:
    """What sources hold that hold every block down to their depths."""
    held = CountingTable()
    for source, depth in enumerate(depths):
        for prefix in DEEP.hashes[:depth]:
            held[prefix] = held.get(prefix) | 1 << source
    held.probes = 0
    return held


@given(st.lists(st.integers(0, 2000), max_size=6))
def test_contiguous_over_many_blocks(depths: list[int]) -> None:
    chain = PrefixChain(tokens(range(2000)), 1, 5)
    assert contiguous(chain, nested(depths), 2 ** len(depths) - 1) == as_depths(depths)


def test_contiguous_probes_few_of_many_blocks() -> None:
    for depths in ([2000] * 4, [300, 700, 1100, 1999]):
        held = nested(depths)
        chain = PrefixChain(tokens(range(2000)), 1, 5)
        assert contiguous(chain, held, 15) == as_depths(depths)
        assert held.probes < 64 + 5 + 4 * 11


def test_a_hole_is_seen_at_the_start_and_where_a_stride_ends() -> None:
    for hole in (0, 7, 15, 63, 127, 511):
        held = nested([2000, 2000])
        held[DEEP.hashes[hole]] = 1
        chain = PrefixChain(tokens(range(2000)), 1, 5)
        found = dict(contiguous(chain, held, 3))
        assert found.pop(2000) == 1
        assert sum(found.values()) == (2 if hole else 0)
        assert all(depth <= hole for depth in found)


@given(st.one_of(masks, often), depth_lists, st.integers(1, 6))
def test_ending_in_run(held: list[int], depths: list[int], span: int) -> None:
    expected = [
        max((end for end in range(1, depth + 1) if run_ends(held, source, end, span)), default=0)
        for source, depth in enumerate(depths)
    ]
    assert ending_in_run(HASHES, as_depths(depths), table_of(held), span) == as_depths(expected)


@given(st.lists(st.tuples(often, st.integers(1, 5)), min_size=1, max_size=3), depth_lists)
def test_satisfying_all(classes: list[tuple[list[int], int]], depths: list[int]) -> None:
    expected = [
        max(
            (
                end
                for end in range(1, depth + 1)
                if all(run_ends(held, source, end, span) for held, span in classes)
            ),
            default=0,
        )
        for source, depth in enumerate(depths)
    ]
    tables = [(table_of(held), span) for held, span in classes]
    assert satisfying_all(HASHES, as_depths(depths), tables) == as_depths(expected)
