"""What a router knows of a fleet, for re-implemented policies: announced blocks and its own accounting.

The same knowledge as the gateway's router has: events late or lost, first tokens and ends at once, and the
hybrid rule, which few of the original routers know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol

from loadtests.fleet.cache import CacheEvent, Stored
from loadtests.fleet.chooser import Choice
from loadtests.fleet.request import Request


class WorkerView:
    """One worker as the router sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.announced: set[int] = set()
        """Blocks, and the complements of blocks whose state is cached."""
        self.hybrid = False
        self.requests: dict[int, Flight] = {}
        """By ticket, in the order of placement."""
        self.queued_tokens = 0
        """Uncached prompt tokens of requests without a first token."""
        self.waiting = 0
        """Requests without a first token."""
        self.active: Counter[int] = Counter()
        """Blocks of prompts in flight -> requests that have them."""
        self.last_used = 0

    @property
    def sequences(self) -> int:
        return len(self.requests)

    @property
    def active_blocks(self) -> int:
        """Distinct blocks of the prompts in flight."""
        return len(self.active)

    def overlap(self, blocks: Sequence[int]) -> int:
        """Usable cached blocks of a prompt."""
        announced = self.announced
        depth = 0
        for block in blocks:
            if block not in announced:
                break
            depth += 1
        if self.hybrid:
            while depth and ~blocks[depth - 1] not in announced:
                depth -= 1
        return depth

    def apply(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            keys = [~block for block in event.blocks] if event.state else event.blocks
            self.hybrid |= event.state
            if isinstance(event, Stored):
                self.announced.update(keys)
            else:
                self.announced.difference_update(keys)


class Flight:
    """One request that was placed and is not released."""

    __slots__ = ("blocks", "prefilling", "seconds", "uncached", "worker")

    def __init__(self, worker: WorkerView, blocks: Sequence[int], uncached: int) -> None:
        self.worker = worker
        self.blocks = blocks
        self.uncached = uncached
        self.prefilling = True
        self.seconds = 0.0
        """A formula's own estimate of its prefill."""


class Prompt:
    """A request as a formula sees it."""

    def __init__(self, request: Request, block_tokens: int) -> None:
        self.tokens = request.prompt_tokens
        self.block_tokens = block_tokens
        self.blocks = request.blocks[: request.prompt_tokens // block_tokens]
        """All whole blocks."""
        self._cacheable = self.blocks[: (request.prompt_tokens - 1) // block_tokens]

    def cached_tokens(self, worker: WorkerView) -> int:
        return worker.overlap(self._cacheable) * self.block_tokens


class Formula(Protocol):
    """A policy."""

    def pick(self, workers: Sequence[WorkerView], prompt: Prompt, cached: Sequence[int], now: float) -> int:
        """Position of one of at least one worker; `cached` are tokens that each holds of the prompt."""

    def placed(self, flight: Flight, now: float) -> None:
        """The request has been placed as `pick` said."""

    def first_token(self, flight: Flight, now: float) -> None:
        """Its prefill is over."""


class ViewChooser:
    """A formula with the accounting that it needs."""

    def __init__(self, formula: Formula, block_tokens: int) -> None:
        self._formula = formula
        self._block_tokens = block_tokens
        self._workers: dict[str, WorkerView] = {}
        self._flights: dict[int, Flight] = {}
        self._tickets = 0

    def add_worker(self, worker: str) -> None:
        self._workers[worker] = WorkerView(worker)

    def remove_worker(self, worker: str) -> None:
        self._workers.pop(worker, None)

    def choose(self, request: Request, now: float) -> Choice:
        prompt = Prompt(request, self._block_tokens)
        workers = list(self._workers.values())
        cached = [prompt.cached_tokens(worker) for worker in workers]
        chosen = self._formula.pick(workers, prompt, cached, now)
        worker = workers[chosen]
        flight = Flight(worker, prompt.blocks, prompt.tokens - cached[chosen])
        self._tickets += 1
        self._flights[self._tickets] = worker.requests[self._tickets] = flight
        worker.queued_tokens += flight.uncached
        worker.waiting += 1
        worker.active.update(flight.blocks)
        worker.last_used = self._tickets
        self._formula.placed(flight, now)
        return Choice(worker.name, self._tickets, cached[chosen])

    def first_token(self, ticket: int, cached_tokens: int, now: float) -> None:
        flight = self._flights[ticket]
        self._end_prefill(flight)
        self._formula.first_token(flight, now)

    def release(self, ticket: int, output_tokens: int, now: float) -> None:
        flight = self._flights.pop(ticket)
        self._end_prefill(flight)
        del flight.worker.requests[ticket]
        active = flight.worker.active
        for block in flight.blocks:
            active[block] -= 1
            if not active[block]:
                del active[block]

    def apply(self, worker: str, events: Iterable[CacheEvent], now: float) -> None:
        if worker in self._workers:
            self._workers[worker].apply(events)

    def _end_prefill(self, flight: Flight) -> None:
        if flight.prefilling:
            flight.prefilling = False
            flight.worker.queued_tokens -= flight.uncached
            flight.worker.waiting -= 1


def lowest(costs: Sequence[float], random: Random) -> int:
    """Position of the lowest cost; ties are drawn at random."""
    least = min(costs)
    return random.choice([position for position, cost in enumerate(costs) if cost == least])
