"""Prefix hashes: a chain of seeded xxh3_64 over whole token blocks.

The hash of block i is xxh3_64(tokens of block i as little-endian uint32, seed = hash of block i - 1). Each
hash thus names a whole prefix, and two chains meet only where their tokens, block size and root agree. The
root carries the router's seed (so that no tenant can prepare collisions), the cache salt and the LoRA
adapter.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from struct import Struct

import numpy as np
import xxhash

from router.messages import TokenIds

_TOKEN_BYTES = 4
_TOKEN_TYPE = np.dtype(np.uint32)
_FIRST_STRIDE = 8
"""Blocks hashed at first by a lazy chain; each further stride doubles."""
_MAX_CHAINS = 8
"""Chains that a memo keeps: one for each block size and cache salt."""

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("token buffers are little-endian uint32; this machine is big-endian")


@lru_cache(maxsize=64)
def _blocks_of(stride: int) -> Struct:
    """Takes bytes apart into pieces of `stride` bytes, in one call for all."""
    return Struct(f"{stride}s")


def extend_hashes(
    parent: int, token_bytes: bytes, block_size: int, extras: Mapping[int, bytes] | None = None
) -> list[int]:
    """Chain `parent` over the whole blocks in `token_bytes`; a rest shorter than a block is left out.

    `extras` maps a block's position in `token_bytes` to content beside its tokens (images, embeddings).
    """
    digest = xxhash.xxh3_64_intdigest
    stride = block_size * _TOKEN_BYTES
    if rest := len(token_bytes) % stride:
        token_bytes = token_bytes[:-rest]
    blocks = _blocks_of(stride).iter_unpack(token_bytes)
    if extras is None:
        return [parent := digest(block, parent) for (block,) in blocks]
    return [
        parent := digest(block + extras.get(position, b""), parent)
        for position, (block,) in enumerate(blocks)
    ]


class PrefixHasher:
    """One router's hash function: the same seed for events and requests."""

    __slots__ = ("_seed",)

    def __init__(self, seed: int) -> None:
        self._seed = seed & 0xFFFF_FFFF_FFFF_FFFF

    def root(self, cache_salt: str | None = None, lora: str | None = None) -> int:
        """The seed of a chain's first block: prompts that may share no cache get different roots."""
        salt = b"" if cache_salt is None else b"s" + cache_salt.encode("utf-8", "surrogatepass")
        adapter = b"" if lora is None else b"l" + lora.encode("utf-8", "surrogatepass")
        return xxhash.xxh3_64_intdigest(b"%d:%b%b" % (len(salt), salt, adapter), self._seed)


class HashMemo:
    """What has been hashed of a prompt, for the next look-up of it or of a prompt that goes on from it."""

    __slots__ = ("_chains", "_digests")

    def __init__(self) -> None:
        self._chains: dict[tuple[int, int], list[int]] = {}
        self._digests: dict[tuple[int, str], list[bytes]] = {}

    def chain(self, block_size: int, root: int) -> list[int]:
        """The hashes known so far, from the first block on; the caller appends to them."""
        known = self._chains.get((block_size, root))
        if known is None:
            if len(self._chains) >= _MAX_CHAINS:
                self._chains.pop(next(iter(self._chains)))
            known = self._chains[block_size, root] = []
        return known

    def digests(self, unit: int, chain: str) -> list[bytes]:
        """The same for an engine's own hashes (`recipes`); `chain` names recipe and salt."""
        known = self._digests.get((unit, chain))
        if known is None:
            if len(self._digests) >= _MAX_CHAINS:
                self._digests.pop(next(iter(self._digests)))
            known = self._digests[unit, chain] = []
        return known

    def fork(self, tokens: int) -> HashMemo:
        """A memo of its own for a prompt that shares the first `tokens` tokens."""
        fork = HashMemo()
        for (block_size, root), known in list(self._chains.items()):
            fork._chains[block_size, root] = known[: tokens // block_size]
        for (unit, chain), digests in list(self._digests.items()):
            fork._digests[unit, chain] = digests[: tokens // unit]
        return fork


class PrefixChain:
    """The lazy chain of one prompt at one block size."""

    __slots__ = ("_block_size", "_known", "_root", "_tokens", "hashes", "length")

    def __init__(
        self,
        tokens: TokenIds,
        block_size: int,
        root: int,
        length: int | None = None,
        memo: HashMemo | None = None,
    ) -> None:
        """`length` bounds the chain, in blocks; at most the whole blocks of `tokens`.

        Raises TypeError when the tokens are not uint32: other bytes would match nothing, silently.
        """
        if tokens.dtype != _TOKEN_TYPE:
            raise TypeError(f"token ids are {tokens.dtype}, not uint32")
        whole = len(tokens) // block_size
        self._tokens = tokens
        self._block_size = block_size
        self._root = root
        self.length = whole if length is None else min(length, whole)
        self.hashes: list[int] = []
        """What is hashed so far; entry i names the first i + 1 blocks."""
        self._known = self.hashes if memo is None else memo.chain(block_size, root)

    def grow(self) -> bool:
        """Hash another stride of blocks, as many as are there already; False when the chain was complete."""
        done = len(self.hashes)
        if done >= self.length:
            return False
        upto = min(self.length, max(2 * done, _FIRST_STRIDE))
        if len(self._known) < upto:
            self._hash(len(self._known), upto)
        if self._known is not self.hashes:
            self.hashes += self._known[done:upto]
        return True

    def end(self) -> int:
        """The hash of all whole blocks of the prompt, whatever bounds the chain; the root if none."""
        whole = len(self._tokens) // self._block_size
        if len(self._known) < whole:
            done = len(self._known)
            parent = self._known[-1] if done else self._root
            rest = self._tokens[done * self._block_size :].tobytes()
            return extend_hashes(parent, rest, self._block_size)[-1]
        return self._known[whole - 1] if whole else self._root

    def _hash(self, start: int, stop: int) -> None:
        part = self._tokens[start * self._block_size : stop * self._block_size].tobytes()
        parent = self._known[-1] if start else self._root
        self._known += extend_hashes(parent, part, self._block_size)
