"""Where requests ended, told from the stores of an engine that does not announce states (SGLang).

It keeps a hybrid model's state at the end of each prompt, once the prefill is done, and at the end of each
finished request. Both are the last block of a store; a prompt that was cached whole is not stored again, but
the router has sent it.
"""

from __future__ import annotations

Table = dict[int, int]


class RequestEnds:
    """One life of one source. `marks` are the prefixes whose bit is set in the shared table."""

    __slots__ = ("marks", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self.marks: dict[int, int] = {}
        """Ends (the values repeat the keys)."""

    def renewed(self) -> RequestEnds:
        """For a life that holds nothing."""
        return RequestEnds(self.table)

    def mark(self, prefix: int, bit: int) -> None:
        """A prompt, or a request that is finished, ends here; its blocks are held."""
        self.marks[prefix] = prefix
        self.table[prefix] = self.table.get(prefix, 0) | bit

    def drop(self, prefix: int, bit: int) -> None:
        """The block is gone."""
        if self.marks.pop(prefix, None) is not None:
            mask = self.table[prefix] & ~bit
            if mask:
                self.table[prefix] = mask
            else:
                del self.table[prefix]
