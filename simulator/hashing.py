"""vLLM's prefix hash chain.

A block's digest is sha256 over the pickled (parent digest, token ids, extra keys); events carry its low
64 bits. The chain depends on nothing but the tokens, the salt and the seed, so any process can compute it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence

Digest = bytes
PROTOCOL = 5
"""Pickle's highest protocol on every supported Python; another one would give other digests."""


def root_digest(seed: str) -> Digest:
    """The parent of every first block."""
    return hashlib.sha256(pickle.dumps(seed, protocol=PROTOCOL)).digest()


def block_digest(parent: Digest, token_ids: Sequence[int], salt: str | None = None) -> Digest:
    """Digest of one full block; `salt` belongs to a prompt's first block only."""
    extra = None if salt is None else (("cache_salt", salt),)
    return hashlib.sha256(pickle.dumps((parent, tuple(token_ids), extra), protocol=PROTOCOL)).digest()


def chain(root: Digest, token_ids: Sequence[int], block_size: int, salt: str | None = None) -> list[Digest]:
    """Digests of the full blocks of `token_ids`, first to last."""
    digests: list[Digest] = []
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_digest(parent, token_ids[start : start + block_size], None if digests else salt)
        digests.append(parent)
    return digests


def event_hash(digest: Digest) -> int:
    """What a KV event calls the block: an unsigned 64-bit number."""
    return int.from_bytes(digest[-8:], "big")
