"""Block tables: the blocks that one sequence has in one group, and what the group keeps of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from simulator.groups import Group
from simulator.hashing import Digest
from simulator.pool import NULL, BlockPool, Prefix

NEVER = 1 << 62


class Held(NamedTuple):
    """Places `first` up to `full` are full now; at `kept` of them the prefix can be found again."""

    first: int
    full: int
    kept: list[int]


class Table:
    """A full-attention group's table: every block stays, every full block is kept for others."""

    def __init__(self, pool: BlockPool, index: int, group: Group, block_size: int) -> None:
        self.blocks: list[int] = []
        self.index = index
        self.group = group
        self._pool = pool
        self.block_size = self._size = block_size
        self._full = 0
        """Blocks already told of as full, or part of the hit."""

    def wanted(self, upto: int, hit: Sequence[int] = ()) -> int:
        """Free blocks that it takes to have room for `upto` tokens, after taking over the blocks of a hit."""
        return max(-(-upto // self._size) - len(hit) - len(self.blocks), 0) + self._pool.unused(hit)

    def wanted_in_all(self, tokens: int, hit: Sequence[int], step: int) -> int:
        """The same for a whole sequence whose steps have at most `step` tokens."""
        return self.wanted(tokens, hit)

    def adopt(self, hit: Sequence[int]) -> None:
        """Begin with the blocks of a hit."""
        self._pool.use(hit)
        self.blocks += hit
        self._full = len(hit)

    def trim(self, computed: int) -> None:
        """Give back what is not needed to go on after `computed` tokens."""

    def next_trim(self) -> int:
        """Computed tokens from which on `trim` will have something to give back."""
        return NEVER

    def grow(self, upto: int) -> list[Prefix]:
        """Take blocks for `upto` tokens; the prefixes that were lost for them."""
        return self._take(-(-upto // self._size) - len(self.blocks))

    def hold(self, tokens: int, digests: Sequence[Digest], boundaries: Collection[int]) -> Held | None:
        """Keep the blocks that `tokens` tokens fill, as far as the group does; None when none became full.

        `boundaries` are the depths, in blocks, at which other requests will go on.
        """
        first, full = self._full, tokens // self._size
        if full <= first:
            return None
        self._full = full
        kept = [place for place in self._reachable(first, full, boundaries) if self.blocks[place] != NULL]
        for place in kept:
            self._pool.hold(self.blocks[place], self.index, digests[place])
        return Held(first, full, kept)

    def release(self) -> None:
        """Give all blocks back, the last to go first."""
        self._pool.release(reversed(self.blocks))
        self.blocks = []
        self._full = 0

    def kept_blocks(self) -> int:
        """Depth in blocks of the deepest prefix that the table holds."""
        places = range(len(self.blocks) - 1, -1, -1)
        return next((place + 1 for place in places if self._pool.held(self.blocks[place])), 0)

    def _reachable(self, first: int, full: int, boundaries: Collection[int]) -> Collection[int]:
        return range(first, full)

    def _take(self, count: int) -> list[Prefix]:
        if count <= 0:
            return []
        blocks, lost = self._pool.allocate(count)
        self.blocks += blocks
        return lost

    def _drop(self, places: Sequence[int]) -> None:
        dropped = [self.blocks[place] for place in places]
        for place in places:
            self.blocks[place] = NULL
        self._pool.release(dropped)


class WindowTable(Table):
    """A sliding-window group's table: blocks go once the window has passed them."""

    def __init__(self, pool: BlockPool, index: int, group: Group, block_size: int) -> None:
        super().__init__(pool, index, group, block_size)
        self._passed = 0

    def adopt(self, hit: Sequence[int]) -> None:
        super().adopt(hit)
        self._passed = self._outside(len(hit) * self._size)

    def wanted_in_all(self, tokens: int, hit: Sequence[int], step: int) -> int:
        return self.wanted(min(tokens, self.group.most_blocks(step, self._size) * self._size), hit)

    def trim(self, computed: int) -> None:
        passed = min(self._outside(computed), len(self.blocks))
        self._drop(range(passed - 1, self._passed - 1, -1))
        self._passed = max(passed, self._passed)

    def next_trim(self) -> int:
        assert self.group.window is not None
        return (self._passed + 1) * self._size + self.group.window - 1

    def release(self) -> None:
        super().release()
        self._passed = 0

    def _outside(self, computed: int) -> int:
        """Blocks before the window of the token after `computed` tokens."""
        assert self.group.window is not None
        return max(computed - self.group.window + 1, 0) // self._size

    def _reachable(self, first: int, full: int, boundaries: Collection[int]) -> Collection[int]:
        tail = self.group.tail(self._size)
        places = {place for depth in boundaries for place in range(depth - tail, depth)}
        return [place for place in range(first, full) if place in places]


class StateTable(Table):
    """A state group's table: one block at a time, the state after the last token of a step.

    Steps end at block ends where a state is to be kept, so a block that ends a step there holds that state.
    """

    def __init__(
        self, pool: BlockPool, index: int, group: Group, block_size: int, fresh: set[Prefix]
    ) -> None:
        """`fresh` collects what is kept in the running scheduler step: it is written when the step ends."""
        super().__init__(pool, index, group, block_size)
        self._fresh = fresh
        self._passed = 0

    def wanted(self, upto: int, hit: Sequence[int] = ()) -> int:
        if hit and self._pool.held(hit[-1]) in self._fresh:
            return self._pool.usable + 1
        missing = -(-upto // self._size) - len(hit) - len(self.blocks)
        return min(max(missing, 0), 1) + self._pool.unused(hit)

    def trim(self, computed: int) -> None:
        """All states but the one that the next step starts from go."""
        passed = min(max(computed - 1, 0) // self._size, len(self.blocks))
        self._drop([place for place in range(passed - 1, self._passed - 1, -1) if self.blocks[place] != NULL])
        self._passed = max(passed, self._passed)

    def next_trim(self) -> int:
        return (self._passed + 1) * self._size + 1

    def grow(self, upto: int) -> list[Prefix]:
        missing = -(-upto // self._size) - len(self.blocks)
        self.blocks += [NULL] * (missing - 1)
        return self._take(min(missing, 1))

    def hold(self, tokens: int, digests: Sequence[Digest], boundaries: Collection[int]) -> Held | None:
        held = super().hold(tokens, digests, boundaries)
        if held is not None:
            self._fresh.update((self.index, digests[place]) for place in held.kept)
        return held

    def release(self) -> None:
        super().release()
        self._passed = 0

    def _reachable(self, first: int, full: int, boundaries: Collection[int]) -> Collection[int]:
        return sorted({depth - 1 for depth in boundaries if first < depth <= full})
