"""Attempts at a request: place it, run its legs to the first output, and go by the table when one fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from gateway.engines.base import EngineClient, EngineError, EngineRequest
from gateway.handoff.base import Handoff, HandoffError, decode_request
from gateway.handoff.fabric import Fabric
from gateway.serving.admission import Admission, Turn
from gateway.serving.failures import Cause, Leg, Stage, Trail, cause_of
from gateway.serving.generation import Generation, Observer
from gateway.serving.inflight import InFlight
from gateway.serving.job import Job
from gateway.serving.places import Places
from gateway.serving.reaper import Reaper
from gateway.serving.retry_budget import RetryBudget
from gateway.telemetry.metrics import Metrics
from router.messages import NoWorkerError, Placement
from router.selector import Router

logger = logging.getLogger(__name__)

Listen = Callable[[Observer], Generation]
"""What reads an attempt's tokens: a new generation, or one that goes on."""


class Engines(Protocol):
    """The workers' engine clients."""

    def engine(self, worker: str) -> EngineClient | None:
        """Client of a worker that takes token ids, or None when it is gone."""
        ...

    def report_failure(self, worker: str, error: EngineError) -> None:
        """A request failed there; the fleet looks at the worker at once."""
        ...


class LegError(Exception):
    """A leg of an attempt failed."""

    def __init__(self, stage: Stage, error: EngineError, cause: Cause | None = None) -> None:
        super().__init__(str(error))
        self.stage = stage
        self.error = error
        self.cause = cause or cause_of(error)


class Dispatcher:
    """Starts jobs on workers: on one, or prefill on one and decode on another."""

    def __init__(
        self,
        router: Router,
        engines: Engines,
        handoff: Handoff,
        metrics: Metrics,
        admission: Admission,
        reaper: Reaper,
        fabric: Fabric | None = None,
    ) -> None:
        """Without a `fabric`, any prefill worker goes with any decode worker of its pool, and none is far."""
        self.admission = admission
        self.reaper = reaper
        self.metrics = metrics
        self._places = Places(router, metrics, self._closed, fabric or Fabric({}))
        self._engines = engines
        self._handoff = handoff
        self._attempts: set[InFlight] = set()
        self._budget = RetryBudget()

    def cut_off(self, reason: str) -> None:
        """End every request that is under way, streams with an error frame."""
        self.admission.close()
        self.reaper.close()
        for attempt in list(self._attempts):
            attempt.cut_off(EngineError(reason))

    async def advance(
        self, job: Job, trail: Trail, turn: Turn, listen: Listen, started: float | None
    ) -> InFlight:
        """An attempt with its first output there; whoever gets it closes it.

        Tries until there is one or the table says to stop. Raises EngineError, NoWorkerError, RequestError.
        """
        self._budget.add_request()
        while True:
            attempt = await self.place(job, trail, turn, started)
            try:
                await self._start(attempt, job, listen)
                return attempt
            except LegError as failure:
                self.reaper.give_up(attempt)
                self.note(job, attempt, failure, trail)
            except BaseException:
                self.reaper.take_over(attempt)
                raise

    def note(self, job: Job, attempt: InFlight, failure: LegError, trail: Trail) -> None:
        """Log and count a failure, have its workers looked at, put it on the trail, which may raise it."""
        error, stage = failure.error, failure.stage
        at = attempt.prefill if stage is Stage.PREFILL else attempt.placement
        assert at is not None
        worker, origin = at.target.worker, ""
        if attempt.prefill is not None and stage is not Stage.PREFILL:
            origin = f" after prefill on {attempt.prefill.target.worker}"
        if failure.cause is not Cause.STALE:
            logger.warning("request %s failed on %s%s: %s", job.request_id, worker, origin, error)
            self.metrics.engine_failures[worker] = self.metrics.engine_failures.get(worker, 0) + 1
            self._engines.report_failure(worker, error)
        workers = {Leg.ANSWER: attempt.placement.target.worker}
        if attempt.prefill is not None:
            workers[Leg.PREFILL] = attempt.prefill.target.worker
            if stage is Stage.DECODE and failure.cause is Cause.FAILED:
                # The decode worker lives; is the prefill worker still there?
                self._engines.report_failure(workers[Leg.PREFILL], EngineError(str(error), lost=True))
        trail.add(stage, failure.cause, error, workers, again=self._may_retry(job, stage, error))

    def _may_retry(self, job: Job, stage: Stage, error: EngineError) -> bool:
        """A worker that is gone costs nobody anything; one that says no has been asked for its work.

        What has begun goes on in any case: the client would have to ask for all of it again.
        """
        if error.status is None or stage in (Stage.DECODE, Stage.STREAM):
            return True
        return not job.client_retry and self._budget.take()

    async def place(self, job: Job, trail: Trail, turn: Turn, started: float | None) -> InFlight:
        """An attempt with its places reserved, when there are any; whoever gets it closes it.

        Raises NoWorkerError, RequestError, and what the trail ended in.
        """

        def reserve() -> InFlight:
            began = time.perf_counter()
            try:
                return self._places.reserve(job, trail, started)
            finally:
                self.metrics.routing.observe(time.perf_counter() - began)

        try:
            attempt = await self.admission.place(turn, self._places.lane(job, trail), reserve)
        except NoWorkerError:
            if trail.failure is not None:
                raise trail.failure from None
            raise
        self._attempts.add(attempt)
        return attempt

    # One attempt

    def _closed(self, attempt: InFlight) -> None:
        self._attempts.discard(attempt)
        self.admission.freed()

    async def _start(self, attempt: InFlight, job: Job, listen: Listen) -> None:
        """Raises LegError."""
        job = job.of_pool(attempt.pool)
        if attempt.prefill is None:
            request = engine_request(job, attempt.placement)
            try:
                await attempt.start(self._engine(attempt.placement), request, listen)
            except EngineError as error:
                raise LegError(Stage.WHOLE, error) from None
            return
        # A task, so that a client that leaves does not take the decode leg along: `Reaper`.
        attempt.legs = asyncio.get_running_loop().create_task(
            self._run_legs(attempt, attempt.prefill, job, listen)
        )
        attempt.legs.add_done_callback(_seen)
        await asyncio.shield(attempt.legs)

    async def _run_legs(self, attempt: InFlight, prefill: Placement, job: Job, listen: Listen) -> None:
        decode = await self._prefill(attempt, prefill, job)
        try:
            async with asyncio.timeout(self.reaper.transfer_seconds if attempt.pinned else None):
                await attempt.start(self._engine(attempt.placement), decode, listen)
        except TimeoutError:
            late = EngineError("decode brought nothing: its transfer may hang", retryable=True)
            raise LegError(Stage.DECODE, late) from None
        except EngineError as error:
            if attempt.leg_failure is not None:
                # Decode was ended for the sake of a prefill leg that ran beside it.
                raise LegError(Stage.PREFILL, attempt.leg_failure) from None
            if error.unsent and attempt.pinned:
                self._fetch_elsewhere(attempt, job, decode)
            raise LegError(Stage.DECODE, error) from None

    async def _prefill(self, attempt: InFlight, prefill: Placement, job: Job) -> EngineRequest:
        """Run the prefill leg; the decode leg comes back."""
        blamed = False
        attempt.prefill_started()
        try:
            leg = engine_request(job, prefill)
            leg.constraint = leg.logprobs = None  # its one token is not kept
            result = await self._handoff.prefill(self._engine(prefill), leg)
            if result.leg is not None:
                attempt.prefill_runs(result.leg)
            else:
                attempt.prefilled(result.cached_tokens)
                attempt.pinned = True
        except EngineError as error:
            blamed = error.blames_worker
            raise LegError(Stage.PREFILL, error) from None
        finally:
            if not attempt.leg_runs:
                attempt.prefill_ended(failed=blamed)
                self.admission.freed()
        try:
            return decode_request(engine_request(job, attempt.placement), result.handle)
        except HandoffError as error:
            self.metrics.handles_dropped += 1
            stale = EngineError(str(error), retryable=True)
            raise LegError(Stage.BETWEEN, stale, Cause.STALE) from None

    def _fetch_elsewhere(self, attempt: InFlight, job: Job, decode: EngineRequest) -> None:
        """The decode worker saw nothing of the handle: another one can still get the blocks freed with it."""
        gone = Trail()
        gone.excluded = frozenset({attempt.placement.target.worker})
        try:
            other = self._places.decode_elsewhere(job, gone, attempt.pool)
        except NoWorkerError:
            return
        engine = self._engines.engine(other.placement.target.worker)
        if engine is None:
            other.close()
            return
        attempt.pinned = False
        self.reaper.release(other, engine, decode)

    def _engine(self, placement: Placement) -> EngineClient:
        engine = self._engines.engine(placement.target.worker)
        if engine is None:
            raise EngineError("the worker has gone", retryable=True, lost=True, unsent=True)
        return engine


def engine_request(job: Job, placement: Placement) -> EngineRequest:
    return EngineRequest(
        request_id=job.request_id,
        model=job.model,
        token_ids_json=job.prompt.ids_json,
        prompt_tokens=len(job.prompt.ids),
        dp_rank=placement.target.dp_rank or None,
        sampling=job.sampling,
        top_level=job.top_level,
        constraint=job.constraint,
        usage_on_every_chunk=job.may_stop_early,
        logprobs=job.logprobs,
        prompt_logprobs=job.prompt_logprobs,
        images=job.images,
    )


def _seen(task: asyncio.Task[None]) -> None:
    """Its failure is dealt with by whoever waits, or by nobody."""
    if not task.cancelled():
        task.exception()
