"""Requests that wait for a place: a bounded line, best priority first, then the one that must begin soonest.

Pure: who waits how, and what a place is, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Ticket(Generic[T]):
    """One request's turn. It keeps its place in the order when it joins a line again."""

    __slots__ = ("deadline", "item", "order", "waits")

    def __init__(self, item: T, priority: int, deadline: float, number: int) -> None:
        """Lower `priority` comes first; `number` tells equals apart, the older first."""
        self.item = item
        self.deadline = deadline
        self.order = (priority, deadline, number)
        self.waits = 0
        """Number of its entry in a line; 0 when it does not wait."""


class WaitingLine(Generic[T]):
    """At most `limit` tickets, in lanes: those of one lane wait for the same places, and only their first is
    asked whether there is one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lanes: dict[Hashable, list[tuple[tuple[int, float, int], int, Ticket[T]]]] = {}
        """Heaps; entries of tickets that have left stay until they come up."""
        self._size = 0
        self._entries = 0

    def __len__(self) -> int:
        return self._size

    def join(self, lane: Hashable, ticket: Ticket[T]) -> Ticket[T] | None:
        """Wait in a lane. Where the line is full the last in order must go: it is returned."""
        self._entries += 1
        ticket.waits = self._entries
        self._size += 1
        heappush(self._lanes.setdefault(lane, []), (ticket.order, ticket.waits, ticket))
        if self._size <= self.limit:
            return None
        last = max(self.tickets(), key=lambda each: each.order)
        self.leave(last)
        return last

    def leave(self, ticket: Ticket[T]) -> None:
        """Wait no longer; harmless for one that does not wait."""
        if ticket.waits:
            ticket.waits = 0
            self._size -= 1

    def heads(self) -> list[tuple[Hashable, Ticket[T]]]:
        """The first of each lane, in order."""
        heads = [(lane, head) for lane in list(self._lanes) if (head := self.head(lane)) is not None]
        return sorted(heads, key=lambda each: each[1].order)

    def tickets(self) -> Iterator[Ticket[T]]:
        """All that wait, in no order."""
        return (ticket for lane in self._lanes.values() for _, entry, ticket in lane if ticket.waits == entry)

    def head(self, lane: Hashable) -> Ticket[T] | None:
        """The first of a lane."""
        entries = self._lanes.get(lane)
        while entries:
            _, entry, ticket = entries[0]
            if ticket.waits == entry:
                return ticket
            heappop(entries)
        self._lanes.pop(lane, None)
        return None
