"""One request while it is served, over as many attempts as that takes."""

from __future__ import annotations

import logging

from gateway.engines.base import EngineError
from gateway.serving.admission import Turn
from gateway.serving.continuation import continued, how_it_ended, obstacle
from gateway.serving.dispatch import Dispatcher, LegError, Listen
from gateway.serving.errors import RequestError
from gateway.serving.failures import MAX_FAILURES, Stage, Trail
from gateway.serving.generation import Generation, GenerationFactory
from gateway.serving.inflight import InFlight
from gateway.serving.job import Job

logger = logging.getLogger(__name__)


class BrokenOffError(EngineError):
    """A worker failed after output had gone out, and nobody could go on; `why` says why."""

    def __init__(self, error: EngineError, why: str) -> None:
        super().__init__(str(error), status=error.status, param=error.param)
        self.why = why


class Flights:
    """Starts requests. The one place that knows the limits of going on."""

    def __init__(self, dispatcher: Dispatcher, continuations: int) -> None:
        """A broken answer goes on elsewhere at most `continuations` times."""
        self.dispatcher = dispatcher
        self.continuations = continuations

    async def open(self, job: Job, generation: GenerationFactory) -> Flight:
        """Running, with its first output there. The caller closes it.

        Raises NoWorkerError, EngineError, RequestError.
        """
        flight = Flight(self, job, generation, whole=False)
        await flight.begin(Trail(), job, generation)
        return flight

    async def run(self, job: Job, generation: GenerationFactory) -> Flight:
        """Run to the end; what no other worker can go on with begins anew, since nothing has been sent."""
        flight = Flight(self, job, generation, whole=True)
        await flight.begin(Trail(), job, generation)
        try:
            await flight.wait()
        except BaseException:
            flight.close()
            raise
        return flight


class Flight:
    """What a request's handler holds on to. `close` ends it, whatever happened."""

    def __init__(self, flights: Flights, job: Job, generation: GenerationFactory, *, whole: bool) -> None:
        self._dispatcher = flights.dispatcher
        self._job = job
        self._new_generation = generation
        self._whole = whole
        self._continuations = flights.continuations
        self._restarts = MAX_FAILURES - 1 if whole else 0
        self._turn = Turn(job.priority, job.patience)
        self._first: InFlight | None = None
        self._paused = False
        self.attempt: InFlight

    async def begin(self, trail: Trail, job: Job, listen: Listen) -> None:
        """The next attempt becomes the one that counts."""
        started = self._job.started if self._first is None else None
        self.attempt = await self._dispatcher.advance(job, trail, self._turn, listen, started)
        if self._first is None:
            self._first = self.attempt
        if self._paused:
            self.attempt.pause()

    async def wait(self) -> None:
        """The end of the answer, whoever gives it. Raises EngineError, NoWorkerError, RequestError."""
        while True:
            try:
                await self.attempt.wait()
                return
            except EngineError as error:
                if await self._is_over(error):
                    return

    async def _is_over(self, error: EngineError) -> bool:
        """After a failure: True when the answer was complete, False when another worker has taken over."""
        attempt, job = self.attempt, self._job
        generation = self.generation
        attempt.close()
        if attempt.is_cut_off:
            raise error
        trail = Trail()
        try:
            self._dispatcher.note(job, attempt, LegError(Stage.STREAM, error), trail)
        except EngineError:
            if not generation.finished:
                raise
        if generation.finished:
            return True
        why = obstacle(job, generation)
        if why is None:
            assert generation.said is not None
            reason = how_it_ended(job, generation.said)
            if reason is not None:
                generation.on_finish(0, reason, None)
                generation.flush()
                return True
            why = None if self._continuations else "that has happened too often"
        if why is None:
            self._continuations -= 1
            await self._go_on(trail, generation)
        elif self._restarts:
            self._restarts -= 1
            await self.begin(trail, job, self._new_generation)
        else:
            raise BrokenOffError(error, why)
        return False

    async def _go_on(self, trail: Trail, generation: Generation) -> None:
        assert generation.said is not None
        rest = continued(self._job, self.attempt.pool, generation.said)
        try:
            await self.begin(trail, rest, generation.go_on)
        except (EngineError, RequestError) as error:
            failure = error if isinstance(error, EngineError) else EngineError(error.message)
            raise BrokenOffError(failure, "no other worker could take it") from None
        self._dispatcher.metrics.continuations += 1
        logger.info(
            "request %s goes on after %d tokens on %s",
            *(self._job.request_id, len(generation.said), self.attempt.workers),
        )

    def pause(self) -> None:
        self._paused = True
        self.attempt.pause()

    def resume(self) -> None:
        self._paused = False
        self.attempt.resume()

    def close(self) -> None:
        self.attempt.close()

    @property
    def generation(self) -> Generation:
        """What has been said."""
        assert self.attempt.generation is not None
        return self.attempt.generation

    @property
    def pool(self) -> str:
        return self.attempt.pool

    @property
    def workers(self) -> str:
        return self.attempt.workers

    @property
    def cached_tokens(self) -> int | None:
        """Of the first attempt: what later ones find cached, this request has computed itself."""
        assert self._first is not None
        return self._first.cached_tokens if self._first is self.attempt else self._first.prefill_cached

    @property
    def overlap_tokens(self) -> int:
        assert self._first is not None
        return self._first.overlap_tokens

    @property
    def first_token_at(self) -> float:
        """Event-loop time of the first attempt's first token, in seconds; 0 if there was none."""
        assert self._first is not None
        return self._first.first_token_at
