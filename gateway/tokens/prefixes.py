"""Joined prompts kept from turn to turn, so that the next turn joins and hashes only what is new.

A conversation's next prompt begins with the pieces of its last one. What those gave stays: one buffer of
ids, which grows in place, the text of each piece's ids, and what the router has hashed. Nothing is taken
from a kept prompt but what its own pieces gave, and pieces are compared, not their hashes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from gateway.tokens.prompts import EncodedPrompt
from gateway.tokens.segment_cache import EncodedSegment
from parsers.base import Piece
from router.hashing import HashMemo

_DEPTH = 8
"""Texts at a prompt's beginning by which a kept one is found: tools, system and first turns tell
conversations apart."""
_KEY_CHARS = 64
"""Of each of them, from both ends. Keys need not tell all texts apart: pieces are compared."""
_ID_BYTES = 4
_PIECE_BYTES = 250
"""What a piece costs beside its text, ids and JSON: its tuple, its text's header, its places in lists."""


class KeptPrompt:
    """A joined prompt; `Prefixes` alone writes to it."""

    __slots__ = ("_buffer", "_cost", "_hashes", "_json", "_token_ends", "keys", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.keys: list[int] = []
        self._token_ends: list[int] = []
        """Tokens up to the end of each piece."""
        self._json: list[bytes] = []
        self._buffer: NDArray[np.uint32] = np.empty(0, np.uint32)
        """The ids, and room for more. Prompts are views of its beginning, which never changes."""
        self._hashes = HashMemo()
        self._cost = 0

    @property
    def bytes_used(self) -> int:
        return self._cost + self._buffer.nbytes

    def tokens(self, pieces: int) -> int:
        """Tokens of the first pieces."""
        return self._token_ends[pieces - 1] if pieces else 0

    def prompt(self, pieces: int) -> EncodedPrompt:
        """The prompt of the first pieces."""
        return EncodedPrompt(self._buffer[: self.tokens(pieces)], self._json[:pieces], self._hashes)

    def head(self, pieces: int) -> KeptPrompt:
        """A prompt of its own with the same first pieces."""
        head = KeptPrompt()
        tokens = self.tokens(pieces)
        head.pieces = self.pieces[:pieces]
        head._token_ends = self._token_ends[:pieces]
        head._json = self._json[:pieces]
        head._cost = self._cost * pieces // len(self.pieces)
        head._buffer = self._buffer[:tokens]
        head._hashes = self._hashes.fork(tokens)
        return head

    def grow(self, pieces: Sequence[Piece], parts: Sequence[EncodedSegment]) -> None:
        """Add pieces at the end."""
        start = self.tokens(len(self.pieces))
        ends = list(accumulate((len(part[0]) // _ID_BYTES for part in parts), initial=start))
        self.pieces += pieces
        self._token_ends += ends[1:]
        self._json += [part[1] for part in parts]
        self._cost += sum(sys.getsizeof(piece[0]) + _PIECE_BYTES for piece in pieces)
        self._cost += sum(len(part[1]) for part in parts)
        if ends[-1] > len(self._buffer):
            grown = np.empty(ends[-1] + ends[-1] // 4, np.uint32)
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start : ends[-1]] = np.frombuffer(b"".join([part[0] for part in parts]), np.uint32)


class Prefixes:
    """Kept prompts, bounded in bytes, least recently used out first. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes_used = 0
        self.lookups = 0
        self.reused_tokens = 0
        """Of prompts whose beginning was kept."""
        self._kept: OrderedDict[KeptPrompt, int] = OrderedDict()
        """With the bytes that each was counted for."""
        self._by_key: dict[int, KeptPrompt] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Prefixes {len(self)} prompts, {self.bytes_used} of {self.max_bytes} bytes>"

    def find(self, pieces: Sequence[Piece]) -> tuple[KeptPrompt | None, int]:
        """A kept prompt that begins like these pieces, and how many pieces they share."""
        with self._lock:
            self.lookups += 1
            for key in reversed(_keys(pieces)):
                kept = self._by_key.get(key)
                if kept is not None and (shared := _shared(kept.pieces, pieces)):
                    self.reused_tokens += kept.tokens(shared)
                    return kept, shared
        return None, 0

    def join(
        self, found: KeptPrompt | None, shared: int, pieces: Sequence[Piece], parts: Sequence[EncodedSegment]
    ) -> EncodedPrompt:
        """The prompt of `pieces`: the first `shared` are those of `found`, the others gave `parts`."""
        with self._lock:
            kept = found or KeptPrompt()
            if parts:
                if shared < len(kept.pieces):
                    kept = kept.head(shared)
                kept.grow(pieces[shared:], parts)
            self._keep(kept)
            return kept.prompt(len(pieces))

    def _keep(self, kept: KeptPrompt) -> None:
        self._drop(kept)
        if kept.bytes_used > self.max_bytes // 2:
            return
        self._kept[kept] = kept.bytes_used
        self.bytes_used += kept.bytes_used
        kept.keys = _keys(kept.pieces)
        self._by_key |= dict.fromkeys(kept.keys, kept)
        while self.bytes_used > self.max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, kept: KeptPrompt) -> None:
        self.bytes_used -= self._kept.pop(kept, 0)
        for key in kept.keys:
            if self._by_key.get(key) is kept:
                del self._by_key[key]


def _keys(pieces: Sequence[Piece]) -> list[int]:
    """A key for each number of texts at the beginning."""
    keys: list[int] = []
    key = 0
    for text, is_fixed in pieces:
        if not is_fixed:
            key = hash((key, len(text), text[:_KEY_CHARS], text[-_KEY_CHARS:]))
            keys.append(key)
            if len(keys) == _DEPTH:
                break
    return keys


def _shared(kept: Sequence[Piece], pieces: Sequence[Piece]) -> int:
    """How many pieces two prompts have in common from the start."""
    size = min(len(kept), len(pieces))
    # A prompt and its next turn part at the end, where the first asks for an answer. That is looked at first,
    # because comparing costs a look at all the text.
    while size and kept[size - 1] != pieces[size - 1]:
        size -= 1
    if kept[:size] == pieces[:size]:
        return size
    return next(at for at, (a, b) in enumerate(zip(kept, pieces, strict=False)) if a != b)
