"""One sequence's memory: what its blocks hold in every group, and what an answer makes of it.

Computing a token goes on from the bytes of what came before, as a model does: what follows a wrong block is
wrong as well. Beside that goes the truth, the numbers that the tokens should have, so that the worker knows
which blocks are wrong without being told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from simulator.groups import Group
from simulator.kv.arena import Arena
from simulator.kv.content import START, Words, advance, digests, slots
from simulator.pool import NULL

CHECKED_BLOCKS = 256
"""Blocks that are compared at once, so that the copies stay in the processor's cache."""

Flags = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]


class Table(Protocol):
    """A group's blocks of one sequence; NULL where the group needs none."""

    blocks: list[int]
    group: Group


class Context:
    """Follows a sequence from its hit to its end. `filled` tokens are in memory."""

    def __init__(self, arena: Arena, tables: Sequence[Table], cached: int) -> None:
        """The first `cached` tokens, whole blocks, are there already. The tables go on growing."""
        self._tracks: list[_Track] = [
            _StateTrack(arena, table, cached) if table.group.is_state else _TokenTrack(arena, table, cached)
            for table in tables
        ]
        self._true = self._tracks[-1].true_number(cached)
        self._block_size = arena.block_size
        self.filled = cached

    def compute(self, token_ids: Sequence[int], upto: int) -> None:
        """Write the memory of the tokens up to `upto`; `token_ids` are the sequence's from its start."""
        if upto <= self.filled:
            return
        ids = np.asarray(token_ids[self.filled : upto], dtype=np.uint64)
        true = advance(self._true, ids)
        for track in self._tracks:
            found = true if track.found == self._true else advance(track.found, ids)
            track.write(self.filled, true, found)
        self._true = true[-1]
        self.filled = upto

    def received(self, token_ids: Sequence[int], upto: int) -> int:
        """Look at what a peer gave for the tokens up to `upto`; how many blocks are not as they should be."""
        true = advance(self._true, np.asarray(token_ids[self.filled : upto], dtype=np.uint64))
        wrong = sum(track.check(self.filled, true) for track in self._tracks)
        self._true = true[-1]
        self.filled = upto
        return wrong

    def crosses(self, upto: int) -> bool:
        """Whether a block ends between what is filled and `upto`."""
        return upto // self._block_size > self.filled // self._block_size

    def digest(self, tokens: int | None = None) -> int:
        """64 bits of everything that the next token depends on, or the one after `tokens`; from memory."""
        tokens = self.filled if tokens is None else min(tokens, self.filled)
        if tokens == self.filled:
            found = [track.digests(tokens) for track in self._tracks]
        else:  # A state of the past is not there any more.
            found = [track.digests(tokens) for track in self._tracks if isinstance(track, _TokenTrack)]
        return xxhash.xxh3_64_intdigest(np.concatenate(found).tobytes())

    def wrong_blocks(self) -> int:
        """Blocks that the next token depends on and that are not what the tokens need."""
        return sum(track.wrong(self.filled) for track in self._tracks)


class _Track(ABC):
    """One group's part. Its places are those of the table; a place with NULL has no memory."""

    def __init__(self, arena: Arena, table: Table, cached: int) -> None:
        self.arena = arena
        self.table = table
        self.found = START
        """The number that the memory gives for the last token."""
        if cached:
            self.found = self.read(cached)

    def true_number(self, cached: int) -> np.uint64:
        """What the number of the last cached token should be."""
        if not cached:
            return START
        number: np.uint64 = self.arena.ends[self.table.blocks[self.place(cached)]]
        return number

    def place(self, tokens: int) -> int:
        """Where the last of the first `tokens` tokens lies."""
        return (tokens - 1) // self.arena.block_size

    def ids(self, first: int, last: int) -> Ids:
        """Blocks of the places `first` up to, not including, `last`."""
        return np.asarray(self.table.blocks[first:last], dtype=np.int64)

    def read(self, tokens: int) -> np.uint64:
        """The number of the last of `tokens` tokens, from memory."""
        raise NotImplementedError

    @abstractmethod
    def write(self, start: int, true: Words, found: Words) -> None:
        """Write the tokens after `start`, whose numbers should be `true` and are `found`."""

    @abstractmethod
    def check(self, start: int, true: Words) -> int:
        """Compare the memory of the tokens after `start` with `true`; how many blocks differ."""

    @abstractmethod
    def needed(self, tokens: int) -> Ids:
        """Blocks that the token after `tokens` tokens needs."""

    @abstractmethod
    def digests(self, tokens: int) -> Words:
        """A digest for each needed block."""

    def wrong(self, tokens: int) -> int:
        """How many needed blocks are wrong."""
        return int(self.arena.wrong[self.needed(tokens)].sum())


class _TokenTrack(_Track):
    """Attention: a slot for each token. A sliding window needs only the last of them."""

    def read(self, tokens: int) -> np.uint64:
        size = self.arena.block_size
        block = self.table.blocks[self.place(tokens)]
        number: np.uint64 = self.arena.slots[block * size + (tokens - 1) % size, 0]
        return number

    def write(self, start: int, true: Words, found: Words) -> None:
        arena, stop = self.arena, start + len(found)
        rows, here = self._rows(start, stop)
        arena.slots[rows] = slots(found[here], arena.slots.shape[1])
        right = bool(found[0] == true[0])
        self._note(start, true, np.full(self.place(stop) + 1 - start // arena.block_size, not right))
        self.found = found[-1]

    def check(self, start: int, true: Words) -> int:
        size, stop = self.arena.block_size, start + len(true)
        step = CHECKED_BLOCKS * size
        pieces = [
            self._differs(first, min(first + step, stop), true[first - start : first - start + step])
            for first in range(start, stop, step)
        ]
        wrong = np.concatenate(pieces)
        self._note(start, true, wrong)
        if self.table.blocks[self.place(stop)] != NULL:
            self.found = self.read(stop)
        return int(wrong.sum())

    def needed(self, tokens: int) -> Ids:
        return self.ids(self._first(tokens), self.place(tokens) + 1)

    def digests(self, tokens: int) -> Words:
        size = self.arena.block_size
        full = tokens // size
        sums = self.arena.sums[self.ids(self._first(tokens), full)]
        if tokens % size:
            rest = self.arena.slots[self._rows(full * size, tokens)[0]]
            sums = np.append(sums, digests(rest.reshape(1, -1)))
        return sums

    def _first(self, tokens: int) -> int:
        window = self.table.group.window
        return 0 if window is None else max(tokens - window + 1, 0) // self.arena.block_size

    def _rows(self, start: int, stop: int) -> tuple[Ids, Flags]:
        """Rows of the arena for these tokens, and which of the tokens have one."""
        size = self.arena.block_size
        first = start // size
        blocks = self.ids(first, self.place(stop) + 1)
        rows = (blocks[:, None] * size + np.arange(size)).reshape(-1)[
            start - first * size : stop - first * size
        ]
        here = rows >= size
        return rows[here], here

    def _differs(self, start: int, stop: int, true: Words) -> Flags:
        """For each block of these tokens, whole but for the last, whether any of its slots is wrong."""
        rows, here = self._rows(start, stop)
        differs = np.zeros(stop - start, dtype=np.bool_)
        differs[here] = (self.arena.slots[rows] != slots(true[here], self.arena.slots.shape[1])).any(axis=1)
        wrong: Flags = np.logical_or.reduceat(differs, np.arange(0, stop - start, self.arena.block_size))
        return wrong

    def _note(self, start: int, true: Words, wrong: Flags) -> None:
        """Keep what is known of the blocks with the tokens after `start`."""
        arena, size, stop = self.arena, self.arena.block_size, start + len(true)
        first = start // size
        ids = self.ids(first, self.place(stop) + 1)
        if start % size:
            wrong[0] |= arena.wrong[ids[0]]
        arena.wrong[ids] = wrong
        full = ids[: stop // size - first]
        arena.sums[full] = digests(arena.blocks[full])
        arena.ends[full] = true[size - start % size - 1 :: size][: len(full)]
        arena.wrong[NULL] = False


class _StateTrack(_Track):
    """A state group: one number for the whole prefix, in the block of the last token."""

    def read(self, tokens: int) -> np.uint64:
        number: np.uint64 = self.arena.blocks[self.table.blocks[self.place(tokens)], 0]
        return number

    def write(self, start: int, true: Words, found: Words) -> None:
        places, tokens = self._written(start, len(true))
        for place, token in zip(places, tokens, strict=True):
            block = self.table.blocks[place]
            self.arena.blocks[block] = slots(found[token : token + 1], self.arena.blocks.shape[1])
            self._note(block, true[token], bool(found[token] != true[token]))
        self.found = found[-1]

    def check(self, start: int, true: Words) -> int:
        block = self.table.blocks[self.place(start + len(true))]
        expected = slots(true[-1:], self.arena.blocks.shape[1])
        wrong = not np.array_equal(self.arena.blocks[block : block + 1], expected)
        self._note(block, true[-1], wrong)
        self.found = self.read(start + len(true))
        return int(wrong)

    def needed(self, tokens: int) -> Ids:
        place = self.place(tokens)
        return self.ids(place, place + 1)

    def digests(self, tokens: int) -> Words:
        return self.arena.sums[self.needed(tokens)]

    def _written(self, start: int, count: int) -> tuple[list[int], list[int]]:
        """Places that get a state, and the last token after `start` that goes into each."""
        size, stop = self.arena.block_size, start + count
        places = [
            place for place in range(start // size, self.place(stop) + 1) if self.table.blocks[place] != NULL
        ]
        return places, [min((place + 1) * size, stop) - start - 1 for place in places]

    def _note(self, block: int, true: np.uint64, wrong: bool) -> None:
        arena = self.arena
        arena.sums[block] = digests(arena.blocks[block : block + 1])[0]
        arena.ends[block] = true
        arena.wrong[block] = wrong
