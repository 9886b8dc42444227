"""One engine's KV blocks: which are in use, which are cached, which goes next.

A block is held by running sequences (counted), or cached and free to be taken in least-recently-used order,
or blank. On a hybrid model a prefix counts only down to a block whose recurrent state is cached too; a state
is an entry of its own, `state_blocks` wide, under the complement of its block's id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Stored(NamedTuple):
    """Blocks, in a row, that are cached now."""

    blocks: tuple[int, ...]
    parent: int | None
    """The block before the first; None at a prompt's start."""
    state: bool = False
    """States at the ends of these blocks, not the attention's blocks themselves."""


class Removed(NamedTuple):
    """Blocks that are gone."""

    blocks: tuple[int, ...]
    state: bool = False


CacheEvent = Stored | Removed


class Hit(NamedTuple):
    """How much of a prompt is cached, in blocks."""

    usable: int
    attention: int
    """Without asking for states."""


class BlockCache:
    """`capacity` blocks. A caller allocates blank blocks, commits them when they are full, releases them."""

    def __init__(self, capacity: int, state_blocks: int = 0) -> None:
        """`state_blocks` is 0 for a model without recurrent states."""
        self.capacity = capacity
        self.state_blocks = state_blocks
        self.blank = capacity
        self.events: list[CacheEvent] = []
        """What has happened; whoever publishes takes it away."""
        self._uses: dict[int, int] = {}
        """Key -> sequences that hold it; every cached key is here."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Cached keys that nobody holds, the least recently used first."""
        self._idle_blocks = 0

    def __contains__(self, key: int) -> bool:
        return key in self._uses

    @property
    def free(self) -> int:
        """Blocks that `allocate` could give."""
        return self.blank + self._idle_blocks

    @property
    def cached(self) -> int:
        """Blocks that are cached, held or not."""
        return sum(self._width(key) for key in self._uses)

    def hit(self, blocks: Sequence[int], limit: int) -> Hit:
        """The usable prefix of `blocks`, at most `limit` of them."""
        uses = self._uses
        depth = 0
        for block in blocks[:limit]:
            if block not in uses:
                break
            depth += 1
        usable = depth
        if self.state_blocks:
            while usable and ~blocks[usable - 1] not in uses:
                usable -= 1
        return Hit(usable, depth)

    def hold(self, keys: Iterable[int]) -> None:
        """One more sequence uses these cached keys."""
        for key in keys:
            uses = self._uses[key]
            self._uses[key] = uses + 1
            if not uses:
                del self._idle[key]
                self._idle_blocks -= self._width(key)

    def allocate(self, count: int) -> bool:
        """Take `count` blank blocks, evicting as needed; False, and nothing done, when there are too few."""
        if count > self.free:
            return False
        if count > self.blank:
            self._evict(count - self.blank)
        self.blank -= count
        return True

    def free_blank(self, count: int) -> None:
        """Give back allocated blocks that were never committed."""
        self.blank += count

    def commit(self, blocks: Sequence[int], parent: int | None) -> None:
        """Allocated blocks are full: cache them, held by their sequence. Copies of cached ones go back."""
        run: list[int] = []
        for block in blocks:
            if block in self._uses:
                self._announce(run, parent)
                run, parent = [], block
                self.hold((block,))
                self.blank += 1
            else:
                self._uses[block] = 1
                run.append(block)
        self._announce(run, parent)

    def commit_state(self, block: int) -> bool:
        """Cache the state at a block's end, held by its sequence; False when it is there or has no room."""
        if ~block in self._uses or not self.allocate(self.state_blocks):
            return False
        self._uses[~block] = 1
        self.events.append(Stored((block,), None, state=True))
        return True

    def release(self, keys: Sequence[int]) -> None:
        """A sequence is done with these; the last of them will be evicted first."""
        for key in reversed(keys):
            uses = self._uses[key] - 1
            self._uses[key] = uses
            if not uses:
                self._idle[key] = None
                self._idle_blocks += self._width(key)

    def _width(self, key: int) -> int:
        return 1 if key >= 0 else self.state_blocks

    def _announce(self, run: list[int], parent: int | None) -> None:
        if run:
            self.events.append(Stored(tuple(run), parent))

    def _evict(self, count: int) -> None:
        gone: tuple[list[int], list[int]] = ([], [])
        while count > 0:
            key, _ = self._idle.popitem(last=False)
            del self._uses[key]
            width = self._width(key)
            count -= width
            self.blank += width
            self._idle_blocks -= width
            gone[key < 0].append(key if key >= 0 else ~key)
        for state, blocks in enumerate(gone):
            if blocks:
                self.events.append(Removed(tuple(blocks), bool(state)))
