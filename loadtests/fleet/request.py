"""Requests of the simulation: sizes in tokens, content as block ids.

A block id names a prefix: two requests have equal ids at a position exactly where everything up to the end
of that block is equal, as in Mooncake's traces. Token ids are made from them when the router needs tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from router.messages import TokenIds

Segment = tuple[object, int]
"""A piece of text: what it is (equal keys are equal texts) and its length in tokens."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and its answer."""

    arrival: float
    """Seconds since the start."""
    prompt_tokens: int
    output_tokens: int
    """Tokens that the engine will generate; the router does not know them."""
    blocks: tuple[int, ...]
    """Ids of the whole blocks of prompt and answer together."""
    session: int = -1
    """Whom the workload asks about what follows; -1 for nobody."""


def token_ids(blocks: Sequence[int], tokens: int, block_tokens: int) -> TokenIds:
    """The first `tokens` tokens of a text with these blocks: each block's id, over and over."""
    whole = tokens // block_tokens
    ids = np.zeros(tokens, dtype=np.uint32)
    named = np.array(blocks[:whole], dtype=np.uint32)
    ids[: whole * block_tokens] = np.repeat(named, block_tokens)
    return ids


class BlockNames:
    """Gives block ids to texts: equal ids for equal prefixes, never the same id for two."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._known: dict[tuple[object, ...], int] = {}
        self._next = 1

    def fresh(self) -> int:
        """An id that nothing else has."""
        name = self._next
        self._next += 1
        return name

    def of(self, segments: Iterable[Segment]) -> tuple[int, ...]:
        """Ids of the whole blocks of a text that is these segments in a row."""
        names: list[int] = []
        previous = 0
        room = self.block_tokens
        pieces: list[object] = []
        for key, length in segments:
            start = 0
            while start < length:
                taken = min(room, length - start)
                pieces.append((key, start, taken))
                start += taken
                room -= taken
                if not room:
                    previous = self._named((previous, *pieces))
                    names.append(previous)
                    room = self.block_tokens
                    pieces = []
        return tuple(names)

    def _named(self, content: tuple[object, ...]) -> int:
        name = self._known.get(content)
        if name is None:
            name = self._known[content] = self.fresh()
        return name
