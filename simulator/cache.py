"""Sequences in the KV pool, and the events that their blocks give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.hashing import Digest, block_digest, event_hash
from simulator.pool import BlockPool

Event = dict[str, Any]
"""One KV event as the wire has it, keys in vLLM's order."""


class KVCache:
    """The pool, what is promised of it, and the events not yet published."""

    def __init__(self, num_blocks: int, block_size: int, root: Digest) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.root = root
        self.promised = 0
        """Blocks that running sequences may still take; counted as gone, so that none is preempted."""
        self._events: list[Event] = []

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def usage(self) -> float:
        """Share of the pool that sequences use, 0 to 1."""
        return 1.0 - self.pool.free / self.pool.usable

    def clear(self) -> bool:
        """Forget all prefixes; False while a sequence runs. The event waits for the next published batch."""
        if not self.pool.clear():
            return False
        self._events.append({"type": "AllBlocksCleared"})
        return True

    def open(
        self, token_ids: Sequence[int], digests: list[Digest], salt: str | None, output: int
    ) -> KVSequence | None:
        """Place a prompt with `output` tokens to come; None while there is no room.

        At least the prompt's last token is always computed, so a hit is at most (n - 1) // block_size blocks.
        """
        size = self.block_size
        hit = self.pool.match(digests, (len(token_ids) - 1) // size)
        blocks_needed = -(-(len(token_ids) + max(output - 1, 0)) // size) - len(hit)
        if self.pool.free_after_use(hit) - self.promised < blocks_needed:
            return None
        self.pool.use(hit)
        self.promised += blocks_needed
        return KVSequence(self, token_ids, digests, salt, hit, blocks_needed)

    def removed(self, digests: list[Digest]) -> None:
        """Note evicted prefixes, one event each."""
        self._events += [
            {"type": "BlockRemoved", "block_hashes": [event_hash(digest)], "medium": "GPU", "group_idx": 0}
            for digest in digests
        ]

    def stored(
        self, digests: list[Digest], parent: Digest | None, token_ids: Sequence[int], salt: str | None
    ) -> None:
        """Note blocks that became full; `salt` when the first of them is a prompt's first."""
        extra_keys: list[list[str] | None] = [None] * len(digests)
        if salt is not None:
            extra_keys[0] = [salt]
        self._events.append(
            {
                "type": "BlockStored",
                "block_hashes": [event_hash(digest) for digest in digests],
                "parent_block_hash": None if parent is None else event_hash(parent),
                "token_ids": token_ids,
                "block_size": self.block_size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": extra_keys,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )


class KVSequence:
    """One running sequence's blocks. `compute` walks over its tokens; `close` gives the blocks back."""

    def __init__(
        self,
        cache: KVCache,
        token_ids: Sequence[int],
        digests: list[Digest],
        salt: str | None,
        hit: list[int],
        promised: int,
    ) -> None:
        self._cache = cache
        self._token_ids = list(token_ids)
        self._digests = digests
        self._salt = salt
        self._blocks = hit
        self._promised = promised
        self._held = len(hit)
        self.cached_tokens = len(hit) * cache.block_size
        self.computed = self.cached_tokens
        self._closed = False

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append output tokens; they are in the cache once computed."""
        self._token_ids += token_ids

    def reserve(self, upto: int) -> None:
        """Take the blocks for tokens up to `upto`, evicting what has to go."""
        count = -(-upto // self._cache.block_size) - len(self._blocks)
        if count > 0:
            blocks, evicted = self._cache.pool.allocate(count)
            self._blocks += blocks
            self._promised -= count
            self._cache.promised -= count
            self._cache.removed(evicted)

    def compute(self, upto: int) -> None:
        """Tokens up to `upto` are in the cache: blocks that became full are kept for others and announced."""
        self.computed = upto
        size, first = self._cache.block_size, self._held
        full = upto // size
        if full == first:
            return
        self._hash_until(full)
        for index in range(first, full):
            self._cache.pool.hold(self._blocks[index], self._digests[index])
        self._held = full
        self._cache.stored(
            self._digests[first:full],
            self._digests[first - 1] if first else None,
            self._token_ids[first * size : full * size],
            None if first else self._salt,
        )

    def close(self) -> None:
        """Give everything back; harmless the second time."""
        if not self._closed:
            self._closed = True
            self._cache.promised -= self._promised
            self._cache.pool.release(self._blocks)

    def _hash_until(self, full: int) -> None:
        size = self._cache.block_size
        for index in range(len(self._digests), full):
            parent = self._digests[-1] if self._digests else self._cache.root
            tokens = self._token_ids[index * size : (index + 1) * size]
            self._digests.append(block_digest(parent, tokens, None if index else self._salt))
