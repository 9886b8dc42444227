"""Waiting for a place on a worker: bounded, by priority and deadline, left at once when the client goes.

A request that finds its workers full joins a line. Whenever a place may have become free the first of each
lane tries again; what it reserves is its own from then on. Workers are never given more than they run at
once, so a KV handle never waits in an engine's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from gateway.serving.errors import RequestError, too_many, unavailable
from gateway.serving.inflight import InFlight
from router.messages import FullError
from router.waiting import Ticket, WaitingLine

RETRY_SECONDS = 0.25
"""Between tries without a known reason: a worker has come, or has been found to run more."""

Reserve = Callable[[], InFlight]
"""Reserves what an attempt needs. Raises FullError, NoWorkerError, RequestError."""


Patience = Callable[[], float | None]
"""Seconds that the client waits for its answer, if it said so."""


class Turn:
    """A request's turn, kept from its first try to its last: one that must try again is not behind."""

    __slots__ = ("lane", "patience", "placed", "priority", "reserve", "ticket")

    def __init__(self, priority: int = 0, patience: Patience | None = None) -> None:
        self.priority = priority
        self.patience = patience
        self.ticket: Ticket[Turn] | None = None
        """Once it had to wait."""
        self.lane: Hashable = None
        self.reserve: Reserve | None = None
        self.placed: asyncio.Future[InFlight] | None = None
        """Of one that waits."""


class Admission:
    """The line in front of the workers."""

    def __init__(self, limit: int, seconds: float) -> None:
        """At most `limit` requests wait, each at most `seconds`."""
        self.waited = 0
        """Requests that had to wait."""
        self.refused = 0
        """Requests that were refused: too many waited, or it took too long."""
        self._line: WaitingLine[Turn] = WaitingLine(limit)
        self._seconds = seconds
        self._tickets = 0
        self._serving = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._line)

    async def place(self, turn: Turn, lane: Hashable, reserve: Reserve) -> InFlight:
        """What `reserve` gives once it raises no FullError. Raises RequestError, or what else `reserve` does.

        Those of one lane wait for the same places: while the first does not get one, no other is tried.
        """
        if self._line.head(lane) is None:
            try:
                return reserve()
            except FullError:
                pass
        turn.lane, turn.reserve = lane, reserve
        return await self._wait(turn)

    def freed(self) -> None:
        """A place may have become free: whoever is first may take it."""
        if not len(self._line) or self._serving:
            return
        self._serving = True
        try:
            for lane, ticket in self._line.heads():
                first: Turn | None = ticket.item
                while first is not None and self._try(first):
                    head = self._line.head(lane)
                    first = None if head is None else head.item
        finally:
            self._serving = False

    def close(self) -> None:
        """The gateway goes: nobody waits any longer."""
        for ticket in list(self._line.tickets()):
            self._refuse(ticket.item, unavailable("The gateway is shutting down.", "shutting_down"))

    async def _wait(self, turn: Turn) -> InFlight:
        loop = asyncio.get_running_loop()
        self.waited += 1
        placed: asyncio.Future[InFlight] = loop.create_future()
        turn.placed = placed
        ticket = turn.ticket or self._ticket(turn)
        bumped = self._line.join(turn.lane, ticket)
        if bumped is not None:
            self._refuse(bumped.item, too_many("Too many requests wait for a worker.", "queue_full"))
        late = unavailable("No worker had room for this request in time.", "queue_timeout")
        timer = loop.call_at(ticket.deadline, self._refuse, turn, late)
        self._keep_trying()
        try:
            return await placed
        except asyncio.CancelledError:
            if placed.done() and not placed.cancelled() and placed.exception() is None:
                placed.result().close()  # The place came in the moment in which the client left.
            raise
        finally:
            timer.cancel()
            self._line.leave(ticket)
            turn.placed = turn.reserve = None
            self.freed()  # Whoever is behind it is now the first.

    def _ticket(self, turn: Turn) -> Ticket[Turn]:
        self._tickets += 1
        said = turn.patience() if turn.patience is not None else None
        seconds = self._seconds if said is None else min(said, self._seconds)
        deadline = asyncio.get_running_loop().time() + seconds
        turn.ticket = Ticket(turn, turn.priority, deadline, self._tickets)
        return turn.ticket

    def _try(self, turn: Turn) -> bool:
        """Whether the turn is over, well or not."""
        assert turn.reserve is not None
        assert turn.ticket is not None
        assert turn.placed is not None
        if turn.placed.done():
            self._line.leave(turn.ticket)  # Its client has just left.
            return True
        try:
            result = turn.reserve()
        except FullError:
            return False
        except Exception as error:
            self._line.leave(turn.ticket)
            turn.placed.set_exception(error)
        else:
            self._line.leave(turn.ticket)
            turn.placed.set_result(result)
        return True

    def _refuse(self, turn: Turn, error: RequestError) -> None:
        assert turn.ticket is not None
        self._line.leave(turn.ticket)
        if turn.placed is not None and not turn.placed.done():
            self.refused += 1
            turn.placed.set_exception(error)

    def _keep_trying(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.freed()
        if len(self._line):
            self._keep_trying()
