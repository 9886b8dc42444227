"""The paged KV pool: which blocks are used, which are kept for their prefix, which go next.

Blocks that no sequence uses wait in one queue. What holds no prefix goes to its head, what holds one to its
end: a prefix stays until all else is gone, least recently freed first. Two blocks of a group may hold the
same prefix: the last block of a prompt that is an exact multiple of the block size is computed again, and
each copy is announced and removed on its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from simulator.hashing import Digest

NULL = 0
"""The block that is never handed out; in a table it stands for a block that is not there."""

Prefix = tuple[int, Digest]
"""A group's number and the digest that a block of it ends with."""


class PoolExhaustedError(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """Fixed number of blocks for all groups, with counted references.

    NULL is one of them, so `num_blocks` gives `num_blocks - 1` usable ones. Methods that take blocks pass
    over NULL.
    """

    def __init__(self, num_blocks: int, groups: int = 1) -> None:
        self.usable = num_blocks - 1
        self._references = [0] * num_blocks
        self._held: list[Prefix | None] = [None] * num_blocks
        self._holders: list[dict[Digest, list[int]]] = [{} for _ in range(groups)]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))

    @property
    def free(self) -> int:
        """Blocks that no sequence uses, kept prefixes among them."""
        return len(self._free)

    def find(self, groups: Sequence[int], digest: Digest) -> list[int] | None:
        """A block of each group that holds the prefix; None when a group has none."""
        found = []
        for group in groups:
            holders = self._holders[group].get(digest)
            if not holders:
                return None
            found.append(holders[0])
        return found

    def held(self, block: int) -> Prefix | None:
        """The prefix that a block holds."""
        return self._held[block]

    def unused(self, blocks: Iterable[int]) -> int:
        """How many of the blocks count as free now but would not once used."""
        return sum(block != NULL and not self._references[block] for block in blocks)

    def use(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each."""
        for block in blocks:
            if block == NULL:
                continue
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> tuple[list[int], list[Prefix]]:
        """`count` fresh blocks with one reference each, and the prefixes that were lost for them, in order.

        Raises PoolExhaustedError, and then nothing changed.
        """
        if count > len(self._free):
            raise PoolExhaustedError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        lost = []
        for block in blocks:
            self._references[block] = 1
            prefix = self._held[block]
            if prefix is not None:
                self._forget(block, *prefix)
                lost.append(prefix)
        return blocks, lost

    def hold(self, block: int, group: int, digest: Digest) -> None:
        """Say that a used block now holds the group's prefix that ends with `digest`."""
        self._held[block] = (group, digest)
        self._holders[group].setdefault(digest, []).append(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Give one reference back on each, in the order in which they should go."""
        empty = []
        for block in blocks:
            if block == NULL:
                continue
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._held[block] is None:
                empty.append(block)
            else:
                self._free[block] = None
        for block in reversed(empty):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Forget every prefix. False, and nothing done, while a block is used."""
        if len(self._free) != self.usable:
            return False
        self._held = [None] * (self.usable + 1)
        for holders in self._holders:
            holders.clear()
        return True

    def _forget(self, block: int, group: int, digest: Digest) -> None:
        self._held[block] = None
        holders = self._holders[group][digest]
        holders.remove(block)
        if not holders:
            del self._holders[group][digest]
