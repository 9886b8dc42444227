"""Ids of prompt segments seen before, bounded in bytes.

The cache is exact: a segment is tokenized on its own and BPE never merges across segments, so the ids
of a text are the same in every prompt. Conversations resend their history and agents their tools, so a
long prompt is mostly found here and costs a join.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from parsers.base import Piece

ENTRY_OVERHEAD_BYTES = 300
"""What an entry costs beside its text, ids and JSON: measured, for the dictionary node and object headers."""


class EncodedSegment(NamedTuple):
    """One segment's ids, twice: for the router and for a worker's JSON body."""

    ids: bytes
    """uint32, native byte order."""
    json: bytes
    """The ids in decimal, comma-joined."""


class SegmentCache:
    """Text to `EncodedSegment`, least recently used out first. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes_used = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[str, EncodedSegment] = OrderedDict()
        self._pinned: dict[str, EncodedSegment] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<SegmentCache {len(self)} segments, {self.bytes_used} of {self.max_bytes} bytes>"

    def find(self, pieces: Sequence[Piece]) -> list[EncodedSegment | None]:
        """What is known of each piece, in order; None is a miss."""
        pinned, entries = self._pinned.get, self._entries.get
        # Of a piece that is no ordinary text, a control segment or a run, the second member is true.
        found = [pinned(text) if is_fixed else entries(text) for text, is_fixed in pieces]
        misses = found.count(None)
        self.misses += misses
        self.hits += len(found) - misses
        if self.bytes_used > self.max_bytes // 2:
            # Only a cache that fills up must know what was used last.
            self._touch(pieces, found)
        return found

    def pin(self, key: str, entry: EncodedSegment) -> None:
        """Keep the entry of a control segment or a run for good: they are few."""
        self._pinned[key] = entry

    def put(self, text: str, entry: EncodedSegment) -> None:
        """Keep an entry, unless it alone would take more than a quarter of the cache."""
        size = self._size(text, entry)
        if size > self.max_bytes // 4:
            return
        with self._lock:
            if text in self._entries:
                return
            self._entries[text] = entry
            self.bytes_used += size
            while self.bytes_used > self.max_bytes:
                self.bytes_used -= self._size(*self._entries.popitem(last=False))

    def _touch(self, pieces: Sequence[Piece], found: Sequence[EncodedSegment | None]) -> None:
        with self._lock:
            for (text, is_fixed), entry in zip(pieces, found, strict=True):
                if not is_fixed and entry is not None and text in self._entries:
                    self._entries.move_to_end(text)

    @staticmethod
    def _size(text: str, entry: EncodedSegment) -> int:
        return sys.getsizeof(text) + len(entry.ids) + len(entry.json) + ENTRY_OVERHEAD_BYTES
