"""What KV bytes are made of: a number after each token that depends on all tokens before it, as real KV does.

The numbers follow h' = h * FACTOR + mark(token) modulo 2**64. FACTOR is odd, so the whole series of a piece
of prompt comes from one cumulative sum instead of a loop. They depend on token ids alone, not on salts or
workers: equal prompts give equal bytes everywhere.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

WORD_BYTES = 8
START = np.uint64(0x243F6A8885A308D3)
"""Before the first token; not 0, so that memory nobody wrote is never right."""

_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
_MARK_FACTOR = np.uint64(0xD1342543DE82EF95)
_PIECE = 1 << 15
"""Tokens of one cumulative sum: its two tables stay in the processor's cache."""


@cache
def _tables() -> tuple[Words, Words]:
    """FACTOR**i and FACTOR**-i for the tokens of a piece."""
    inverse = pow(_FACTOR, -1, 1 << 64)
    ups, downs = [1], [1]
    for _ in range(_PIECE - 1):
        ups.append(ups[-1] * _FACTOR & _MASK)
        downs.append(downs[-1] * inverse & _MASK)
    return np.array(ups, dtype=np.uint64), np.array(downs, dtype=np.uint64)


def advance(start: np.uint64, token_ids: Words) -> Words:
    """The numbers after each of `token_ids`, which come after `start`."""
    ups, downs = _tables()
    marks = (token_ids + np.uint64(1)) * _MARK_FACTOR
    out = np.empty(len(marks), dtype=np.uint64)
    for first in range(0, len(marks), _PIECE):
        piece = out[first : first + _PIECE]
        count = len(piece)
        np.multiply(marks[first : first + count], downs[:count], out=piece)
        piece[:1] += np.uint64(int(start) * _FACTOR & _MASK)
        np.cumsum(piece, out=piece)
        piece *= ups[:count]
        start = piece[-1]
    return out


@cache
def _spread(count: int) -> Words:
    """Odd factors, the first of them 1: a slot's first word is its number itself."""
    random = np.random.default_rng(count).integers(0, _MASK, count, dtype=np.uint64, endpoint=True)
    random |= np.uint64(1)
    random[0] = 1
    return random


def slots(numbers: Words, words: int) -> Words:
    """(tokens, words) of KV: each token's slot holds its number, spread over all its words."""
    return np.multiply.outer(numbers, _spread(words))


def digests(blocks: Words) -> Words:
    """A 64-bit digest for each row of (blocks, words): a change of any word changes it."""
    found: Words = np.einsum("ij,j->i", blocks, _spread(blocks.shape[1]))
    return found
