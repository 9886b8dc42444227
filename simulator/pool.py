"""The paged KV pool: which blocks are used, which are kept for their prefix, which go next.

Blocks that no sequence uses wait in one queue, least recently freed first; a block keeps its prefix until
it is taken from that queue's head. Two blocks may hold the same prefix: the last block of a prompt that is
an exact multiple of the block size is computed again, and each copy is announced and removed on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.hashing import Digest


class PoolExhaustedError(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """Fixed number of blocks, counted references, least-recently-used eviction.

    Block 0 is never handed out (vLLM's null block), so `num_blocks` gives `num_blocks - 1` usable ones.
    """

    def __init__(self, num_blocks: int) -> None:
        self.usable = num_blocks - 1
        self._references = [0] * num_blocks
        self._digests: list[Digest | None] = [None] * num_blocks
        self._by_digest: dict[Digest, dict[int, None]] = {}
        self._free: dict[int, None] = dict.fromkeys(range(1, num_blocks))

    @property
    def free(self) -> int:
        """Blocks that no sequence uses, kept prefixes among them."""
        return len(self._free)

    def match(self, digests: Sequence[Digest], limit: int) -> list[int]:
        """Blocks that hold the longest kept prefix of the chain, at most `limit` of them."""
        blocks: list[int] = []
        for digest in digests[:limit]:
            holders = self._by_digest.get(digest)
            if not holders:
                break
            blocks.append(next(iter(holders)))
        return blocks

    def free_after_use(self, blocks: Iterable[int]) -> int:
        """Free blocks that would be left once `blocks` are used."""
        return len(self._free) - sum(not self._references[block] for block in blocks)

    def use(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> tuple[list[int], list[Digest]]:
        """`count` fresh blocks with one reference each, and the prefixes that were lost for them, in order.

        Raises PoolExhaustedError, and then nothing changed.
        """
        if count > len(self._free):
            raise PoolExhaustedError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = [self._take_oldest() for _ in range(count)]
        evicted = [digest for block in blocks if (digest := self._forget(block)) is not None]
        return blocks, evicted

    def hold(self, block: int, digest: Digest) -> None:
        """Say that a used block now holds the prefix that ends with `digest`."""
        self._digests[block] = digest
        self._by_digest.setdefault(digest, {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Give one reference back on each; a chain's last block becomes the next to go."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None

    def clear(self) -> bool:
        """Forget every prefix. False, and nothing done, while a block is used."""
        if len(self._free) != self.usable:
            return False
        self._digests = [None] * (self.usable + 1)
        self._by_digest.clear()
        return True

    def _take_oldest(self) -> int:
        block = next(iter(self._free))
        del self._free[block]
        self._references[block] = 1
        return block

    def _forget(self, block: int) -> Digest | None:
        digest = self._digests[block]
        if digest is not None:
            self._digests[block] = None
            holders = self._by_digest[digest]
            del holders[block]
            if not holders:
                del self._by_digest[digest]
        return digest
