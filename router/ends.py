"""Where requests ended, told from the stores of an engine that does not announce states (SGLang).

It announces a prompt's blocks when the prefill is done and the answer's when the request is finished; state
is kept at the latter end alone. A store is a finish when it goes on from a prompt's end: an end that the
router knows (it sent the prompt), or one that looks like it, the last block of a store that was no finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

Table = dict[int, int]

_TAILS = 4096


class RequestEnds:
    """One life of one source. `marks` are the prefixes whose bit is set in the shared table."""

    __slots__ = ("_tails", "marks", "table")

    def __init__(self, table: Table, tails: Iterable[int] = ()) -> None:
        self.table = table
        self.marks: dict[int, int] = {}
        """Finished ends (the values repeat the keys)."""
        self._tails = dict.fromkeys(tails, False)
        """Prompts' ends, the oldest first; whether a request finished right there, before its store came."""

    def renewed(self) -> RequestEnds:
        """For a life that holds nothing; the prompts under way stay known."""
        return RequestEnds(self.table, self._tails)

    def prompt(self, prefix: int) -> None:
        """A prompt ends here."""
        self._tails.pop(prefix, None)
        if len(self._tails) >= _TAILS:
            for oldest in list(islice(self._tails, _TAILS // 8)):
                del self._tails[oldest]
        self._tails[prefix] = False

    def will_finish(self, prefix: int) -> None:
        """A request finished at its prompt's end, of which the store is still to come."""
        self.prompt(prefix)
        self._tails[prefix] = True

    def stored(self, parent: int | None, last: int, bit: int) -> None:
        """Blocks after `parent` (None: a prompt's start), the last one `last`, were stored."""
        known = self._tails.get(last)
        if known or (known is None and parent is not None and parent in self._tails):
            self.finished(last, bit)
        if known is not None or last not in self.marks:
            self.prompt(last)

    def finished(self, prefix: int, bit: int) -> None:
        """A request that is finished ends here."""
        self.marks[prefix] = prefix
        self.table[prefix] = self.table.get(prefix, 0) | bit

    def drop(self, prefix: int, bit: int) -> None:
        """The block is gone."""
        self._tails.pop(prefix, None)
        if self.marks.pop(prefix, None) is not None:
            mask = self.table[prefix] & ~bit
            if mask:
                self.table[prefix] = mask
            else:
                del self.table[prefix]
