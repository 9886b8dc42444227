"""Route, start on the chosen worker, and take another when it fails before the client saw anything."""

from __future__ import annotations

import logging
import time
from typing import Protocol

import msgspec

from gateway.engines.base import EngineClient, EngineError, EngineRequest
from gateway.handoff.base import Handoff, HandoffError, decode_request
from gateway.serving.errors import bad_request
from gateway.serving.generation import GenerationFactory
from gateway.serving.inflight import InFlight
from gateway.serving.job import Job
from gateway.telemetry.metrics import Metrics
from router.messages import NoWorkerError, Placement, Role, RouteRequest, Variant
from router.selector import Router

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Times that a request is placed, and prefill workers that are tried for each."""


class Engines(Protocol):
    """The workers' engine clients."""

    def engine(self, worker: str) -> EngineClient | None:
        """Client of a worker that takes token ids, or None when it is gone."""
        ...

    def report_failure(self, worker: str, error: EngineError) -> None:
        """A request failed there; the fleet looks at the worker at once."""
        ...


class _PrefillFailedError(Exception):
    """No prefill worker could do its leg; the decode worker is not to blame."""

    def __init__(self, error: EngineError, failed: frozenset[str] = frozenset()) -> None:
        super().__init__(str(error))
        self.error = error
        self.failed = failed


class Dispatcher:
    """Starts jobs on workers: on one, or prefill on one and decode on another."""

    def __init__(self, router: Router, engines: Engines, handoff: Handoff, metrics: Metrics) -> None:
        self._router = router
        self._engines = engines
        self._handoff = handoff
        self._metrics = metrics
        self._flights: set[InFlight] = set()

    def cut_off(self, reason: str) -> None:
        """End every request that is under way, streams with an error frame."""
        for flight in list(self._flights):
            flight.cut_off(EngineError(reason))

    async def open(self, job: Job, generation: GenerationFactory) -> InFlight:
        """Running, with its first output there. The caller closes it. Raises NoWorkerError, EngineError."""
        return await self._try_workers(job, generation, whole=False)

    async def run(self, job: Job, generation: GenerationFactory) -> InFlight:
        """Run to the end; a worker that dies in the middle is replaced, since nothing has been sent."""
        return await self._try_workers(job, generation, whole=True)

    async def _try_workers(self, job: Job, generation: GenerationFactory, *, whole: bool) -> InFlight:
        failed: frozenset[str] = frozenset()
        failure: EngineError | None = None
        for _ in range(MAX_ATTEMPTS):
            flight = self._reserve(job, failed, failure)
            worker = flight.placement.target.worker
            try:
                await self._start(flight, job, generation, failed)
                if whole:
                    await flight.wait()
                return flight
            except EngineError as error:
                flight.close()
                self._note_failure(job, worker, error, flight.prefill)
                failed |= {worker}
                failure = error
            except _PrefillFailedError as wrapped:
                # Without them the request may go to a worker that does both.
                flight.close()
                failed |= wrapped.failed
                failure = wrapped.error
            except NoWorkerError:
                flight.close()
                if failure is not None:
                    raise failure from None
                raise
            except BaseException:
                flight.close()
                raise
            if not failure.retryable:
                break
        assert failure is not None
        raise failure

    def _reserve(self, job: Job, failed: frozenset[str], failure: EngineError | None) -> InFlight:
        """A place where the answer will be generated: reserved before any prefill starts elsewhere."""
        began = time.perf_counter()
        request = route_request(job, "aggregated", failed)
        pair = self._router.prefers_pair(request)
        several = pair and job.choices > 1
        if pair and not several:
            request = route_request(job, "decode", failed)
        try:
            placement = self._router.route(request)
        except NoWorkerError:
            if failure is not None:
                raise failure from None
            if several:
                # Each choice would use the KV handle, which is good for one.
                raise bad_request("`n` above 1 needs a worker that prefills and decodes.", "n") from None
            raise
        self._metrics.routing.observe(time.perf_counter() - began)
        return InFlight(
            self._router,
            placement,
            self._metrics,
            job.started,
            pair=pair and not several,
            group=self._flights,
        )

    async def _start(
        self, flight: InFlight, job: Job, generation: GenerationFactory, failed: frozenset[str]
    ) -> None:
        job = job.of_pool(flight.placement.pool)
        request = _engine_request(job, flight.placement)
        if flight.pair:
            request = await self._prefill(flight, job, request, failed)
        engine = self._engine(flight.placement)
        try:
            await flight.start(engine, request, generation)
        except EngineError:
            if flight.prefill is not None and flight.leg_failure is not None:
                # Decode was ended for the sake of a prefill leg that ran beside it.
                raise self._leg_failed(job, flight.prefill, flight.leg_failure) from None
            raise

    async def _prefill(
        self, flight: InFlight, job: Job, request: EngineRequest, excluded: frozenset[str]
    ) -> EngineRequest:
        """Run the prefill leg somewhere; the decode leg of `request` comes back."""
        failed: frozenset[str] = frozenset()
        failure: EngineError | None = None
        while True:
            try:
                placement = self._router.route(_prefill_request(job, flight.placement, excluded | failed))
            except NoWorkerError:
                if failure is not None:
                    raise _PrefillFailedError(failure, failed) from None
                raise
            flight.prefill_started(placement)
            blamed = False
            try:
                engine = self._engine(placement)
                leg = _engine_request(job, placement)
                leg.constraint = leg.logprobs = None  # its one token is not kept
                result = await self._handoff.prefill(engine, leg)
                if result.leg is not None:
                    flight.prefill_runs(result.leg)
                else:
                    flight.prefilled(result.cached_tokens)
                return decode_request(request, result.handle)
            except EngineError as error:
                self._note_failure(job, placement.target.worker, error)
                failed |= {placement.target.worker}
                failure = error
                blamed = error.blames_worker
                if not error.retryable or len(failed) >= MAX_ATTEMPTS:
                    raise _PrefillFailedError(error, failed) from None
            except HandoffError as error:
                self._metrics.handles_dropped += 1
                raise _PrefillFailedError(EngineError(str(error), retryable=True)) from None
            finally:
                if not flight.leg_runs:
                    flight.prefill_ended(failed=blamed)

    def _leg_failed(self, job: Job, prefill: Placement, error: EngineError) -> _PrefillFailedError:
        worker = prefill.target.worker
        self._note_failure(job, worker, error)
        return _PrefillFailedError(error, frozenset({worker}))

    def _engine(self, placement: Placement) -> EngineClient:
        engine = self._engines.engine(placement.target.worker)
        if engine is None:
            raise EngineError("the worker has gone", retryable=True)
        return engine

    def _note_failure(
        self, job: Job, worker: str, error: EngineError, prefill: Placement | None = None
    ) -> None:
        """`prefill` is where the prompt came from: its worker may be the reason."""
        origin = f" after prefill on {prefill.target.worker}" if prefill is not None else ""
        logger.warning("request %s failed on %s%s: %s", job.request_id, worker, origin, error)
        self._metrics.engine_failures[worker] = self._metrics.engine_failures.get(worker, 0) + 1
        self._engines.report_failure(worker, error)


def route_request(job: Job, role: Role, failed: frozenset[str]) -> RouteRequest:
    variants: list[Variant] = []
    if job.others:
        for each in (job, *job.others):
            assert each.pools is not None
            variants.append(Variant(each.pools, each.prompt.ids, each.prompt.hashes))
    return RouteRequest(
        request_id=job.request_id,
        model=job.model,
        token_ids=job.prompt.ids,
        hashes=job.prompt.hashes,
        role=role,
        cache_salt=job.cache_salt,
        max_tokens=job.max_tokens,
        exclude=failed | job.unable if job.unable else failed,
        pools=job.pools,
        variants=variants,
    )


def _prefill_request(job: Job, decode: Placement, failed: frozenset[str]) -> RouteRequest:
    """A KV cache never leaves its pool: prefill is in the pool of the decode worker."""
    request = route_request(job, "prefill", failed)
    return msgspec.structs.replace(request, pools=frozenset({decode.pool}), variants=())


def _engine_request(job: Job, placement: Placement) -> EngineRequest:
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
    )
