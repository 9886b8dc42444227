"""The simulation: requests arrive, a chooser places them, engines work, events travel.

One heap of (time, number) entries; everything random comes from the seed, so that a run can be repeated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Literal, Protocol

import msgspec

from loadtests.fleet.cache import CacheEvent
from loadtests.fleet.chooser import MakeChooser
from loadtests.fleet.engine import Engine, EngineSpec, Running, Step
from loadtests.fleet.request import Request
from loadtests.fleet.timing import Noise, Pace


class Change(msgspec.Struct, frozen=True):
    """A worker comes or dies."""

    at: float
    """Seconds."""
    kind: Literal["join", "die"]
    worker: str


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The workers, and what stands between them and the router."""

    workers: int = 16
    engine: EngineSpec = EngineSpec()
    noise: Noise = Noise()
    event_lag: float = 0.05
    """Seconds from a step's end until the router has its KV events."""
    event_loss: float = 0.0
    """Share of messages, each with the events of one step, that never arrive."""
    changes: Sequence[Change] = ()


class Workload(Protocol):
    """Requests, some known from the start, others that follow from an answer."""

    def start(self) -> Iterable[Request]:
        """What is known from the start."""

    def finished(self, request: Request, now: float) -> Iterable[Request]:
        """What arrives, now or later, because this request is done."""


class Record(msgspec.Struct):
    """What became of a request. Times in seconds since the start."""

    request: Request
    worker: str
    overlap_tokens: int
    """Cached tokens that the chooser expected."""
    cached_tokens: int = 0
    first_token: float = -1.0
    finished: float = -1.0
    moves: int = 0
    """Times that its worker died under it."""

    @property
    def ttft(self) -> float:
        return self.first_token - self.request.arrival


class Worker:
    """An engine in the fleet."""

    def __init__(self, name: str, engine: Engine, pace: Pace) -> None:
        self.name = name
        self.engine = engine
        self.pace = pace
        self.alive = True
        self.step: Step | None = None
        self.began = 0.0
        self.step_seconds = 0.0
        """Of one repeat of the step under way."""
        self.serial = 0
        """Number of the heap entry that ends the step; others are void."""
        self.busy_seconds = 0.0


class Fleet:
    """One run. `run` may be called once."""

    def __init__(self, spec: FleetSpec, make_chooser: MakeChooser, seed: int) -> None:
        self.spec = spec
        self.workers: dict[str, Worker] = {}
        self.now = 0.0
        self.records: list[Record] = []
        self.lost_messages = 0
        self._chooser = make_chooser(seed, spec.engine.block_tokens, self.workers)
        self._seed = seed
        self._losses = Random(f"losses {seed}")
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._tickets: dict[int, int] = {}
        """Position of a record -> the chooser's ticket, while the request is open."""
        self._workload: Workload | None = None
        for number in range(spec.workers):
            self._join(f"w{number}")

    @property
    def preemptions(self) -> int:
        """Of the workers that are there now."""
        return sum(worker.engine.preemptions for worker in self.workers.values())

    def run(self, workload: Workload) -> list[Record]:
        """All requests to their end; records in the order of arrival."""
        self._workload = workload
        for change in self.spec.changes:
            self._at(change.at, partial(self._change, change))
        self._expect(workload.start())
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        return self.records

    # Requests

    def _expect(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._at(request.arrival, partial(self._arrive, request))

    def _arrive(self, request: Request) -> None:
        self.records.append(Record(request, "", 0))
        self._place(len(self.records) - 1)

    def _place(self, position: int) -> None:
        record = self.records[position]
        choice = self._chooser.choose(record.request, self.now)
        record.worker, record.overlap_tokens = choice.worker, choice.overlap_tokens
        self._tickets[position] = choice.ticket
        worker = self.workers[choice.worker]
        worker.engine.submit(position, record.request)
        self._wake(worker)

    def _first_token(self, running: Running) -> None:
        record = self.records[running.number]
        record.cached_tokens = running.cached_tokens or 0
        if record.first_token < 0:
            record.first_token = self.now
        self._chooser.first_token(self._tickets[running.number], record.cached_tokens, self.now)

    def _finish(self, running: Running) -> None:
        record = self.records[running.number]
        record.finished = self.now
        self._chooser.release(self._tickets.pop(running.number), running.generated, self.now)
        if self._workload is not None:
            self._expect(self._workload.finished(record.request, self.now))

    # Engines

    def _wake(self, worker: Worker) -> None:
        """Something arrived: an idle engine begins, one that only decodes stops at its next step."""
        step = worker.step
        if step is None:
            self._begin(worker)
        elif step.repeats > 1:
            done = int((self.now - worker.began) / worker.step_seconds) + 1
            if done < step.repeats:
                step.repeats = done
                self._end_at(worker, worker.began + done * worker.step_seconds)

    def _begin(self, worker: Worker) -> None:
        step = worker.step = worker.engine.plan()
        self._publish(worker)
        if step is not None:
            worker.began = self.now
            worker.step_seconds = worker.pace.seconds(step.seconds)
            self._end_at(worker, self.now + worker.step_seconds * step.repeats)

    def _end_at(self, worker: Worker, time: float) -> None:
        worker.serial = serial = self._serial
        self._at(max(time, self.now), partial(self._end, worker, serial))

    def _end(self, worker: Worker, serial: int) -> None:
        if worker.serial != serial or worker.step is None or not worker.alive:
            return
        worker.busy_seconds += self.now - worker.began
        progress = worker.engine.end(worker.step)
        worker.step = None
        for running in progress.first_tokens:
            self._first_token(running)
        for running in progress.finished:
            self._finish(running)
        self._begin(worker)

    def _publish(self, worker: Worker) -> None:
        events = worker.engine.cache.events
        if not events:
            return
        worker.engine.cache.events = []
        if self.spec.event_loss and self._losses.random() < self.spec.event_loss:
            self.lost_messages += 1
        else:
            self._at(self.now + self.spec.event_lag, partial(self._deliver, worker, events))

    def _deliver(self, worker: Worker, events: list[CacheEvent]) -> None:
        if worker.alive:
            self._chooser.apply(worker.name, events, self.now)

    # The fleet

    def _change(self, change: Change) -> None:
        if change.kind == "join":
            self._join(change.worker)
        else:
            self._die(change.worker)

    def _join(self, name: str) -> None:
        pace = Pace(self.spec.noise, Random(f"{name} {self._seed}"))
        self.workers[name] = Worker(name, Engine(self.spec.engine), pace)
        self._chooser.add_worker(name)

    def _die(self, name: str) -> None:
        """The worker is gone and noticed at once; its requests begin again elsewhere."""
        worker = self.workers.pop(name)
        worker.alive = False
        self._chooser.remove_worker(name)
        orphans = [running.number for running in (*worker.engine.running, *worker.engine.waiting)]
        for position in orphans:
            self._chooser.release(self._tickets.pop(position), 0, self.now)
        for position in orphans:
            self.records[position].moves += 1
            self._place(position)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time, self._serial, action))
        self._serial += 1
