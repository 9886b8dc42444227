"""Blocks whose hash also covers the tokens after them: what engines with a drafter keep (DSpark, EAGLE).

A drafter's cache for a token depends on the token that follows, so a block is the same only where so many
more tokens are. vLLM lists them beside a block; SGLang's blocks are of overlapping pairs, which is one token.
The prefix hash of such a block is that of its tokens and those; its parent is the block before, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.hashing import extend_hashes
from router.messages import TokenIds

_TOKEN_BYTES = 4
_FIRST_STRIDE = 8


class LookaheadChain:
    """The lazy chain of one prompt; the same to look-ups as `hashing.PrefixChain`."""

    __slots__ = ("_block_size", "_lookahead", "_root", "_tokens", "hashes", "length")

    def __init__(self, tokens: TokenIds, block_size: int, lookahead: int, root: int) -> None:
        """`lookahead` is at least 1: the last token is always left to compute."""
        self._tokens = tokens
        self._block_size = block_size
        self._lookahead = lookahead
        self._root = root
        self.length = max(len(tokens) - lookahead, 0) // block_size
        self.hashes: list[int] = []
        """What is hashed so far; entry i names the first i + 1 blocks."""

    def grow(self) -> bool:
        """Hash another stride of blocks, as many as are there already; False when the chain was complete."""
        done, size = len(self.hashes), self._block_size
        if done >= self.length:
            return False
        upto = min(self.length, max(2 * done, _FIRST_STRIDE))
        raw = self._tokens[done * size : upto * size + self._lookahead].tobytes()
        blocks = raw[: (upto - done) * size * _TOKEN_BYTES]
        following = _following(raw, size, self._lookahead, upto - done)
        self.hashes += extend_hashes(self.hashes[-1] if done else self._root, blocks, size, following)
        return True

    def end(self) -> int:
        """The hash of all blocks that can be cached; the root if none."""
        while self.grow():
            pass
        return self.hashes[-1] if self.hashes else self._root


def _following(raw: bytes, block_size: int, lookahead: int, count: int) -> Mapping[int, bytes]:
    width = _TOKEN_BYTES * block_size
    ends = ((position, (position + 1) * width) for position in range(count))
    return {position: raw[end : end + _TOKEN_BYTES * lookahead] for position, end in ends}


def extras_with(
    following: bytes, lookahead: int, extras: Mapping[int, bytes] | None, count: int
) -> dict[int, bytes]:
    """What an event's `count` blocks cover beside their own tokens, by position.

    `following` has `lookahead` tokens for each block, as little-endian uint32.
    """
    width = _TOKEN_BYTES * lookahead
    extras = extras or {}
    return {
        position: following[position * width : (position + 1) * width] + extras.get(position, b"")
        for position in range(count)
    }
