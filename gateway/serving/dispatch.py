"""Route, start on the chosen worker, and take another when it fails before the client saw anything."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from gateway.engines.base import EngineClient, EngineError, EngineRequest
from gateway.serving.generation import GenerationFactory
from gateway.serving.inflight import InFlight
from gateway.telemetry.metrics import Metrics
from gateway.tokens.tokenizer import EncodedPrompt
from router.messages import NoWorkerError, Placement, RouteRequest
from router.selector import Router

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3


class Engines(Protocol):
    """The workers' engine clients."""

    def engine(self, worker: str) -> EngineClient | None:
        """Client of a worker that takes token ids, or None when it is gone."""
        ...

    def report_failure(self, worker: str, error: EngineError) -> None:
        """A request failed there; the fleet looks at the worker at once."""
        ...


class Job(msgspec.Struct, kw_only=True):
    """A request that is ready to go out."""

    request_id: str
    model: str
    prompt: EncodedPrompt
    sampling: dict[str, bytes]
    top_level: dict[str, bytes]
    max_tokens: int
    cache_salt: str | None
    started: float
    """Event-loop time when the request came in, in seconds."""


class Dispatcher:
    """Starts jobs on workers."""

    def __init__(self, router: Router, engines: Engines, metrics: Metrics) -> None:
        self._router = router
        self._engines = engines
        self._metrics = metrics

    async def open(self, job: Job, generation: GenerationFactory) -> InFlight:
        """Running, with its first output there. The caller closes it. Raises NoWorkerError, EngineError."""
        return await self._try_workers(job, generation, whole=False)

    async def run(self, job: Job, generation: GenerationFactory) -> InFlight:
        """Run to the end; a worker that dies in the middle is replaced, since nothing has been sent."""
        return await self._try_workers(job, generation, whole=True)

    async def _try_workers(self, job: Job, generation: GenerationFactory, *, whole: bool) -> InFlight:
        failed: frozenset[str] = frozenset()
        failure: EngineError | None = None
        while True:
            try:
                placement = self._router.route(_route_request(job, failed))
            except NoWorkerError:
                if failure is not None:
                    raise failure from None
                raise
            flight = InFlight(self._router, placement, self._metrics, job.started)
            worker = placement.target.worker
            try:
                engine = self._engines.engine(worker)
                if engine is None:
                    raise EngineError("the worker has gone", retryable=True)
                await flight.start(engine, _engine_request(job, placement), generation)
                if whole:
                    await flight.wait()
                return flight
            except EngineError as error:
                flight.close()
                self._note_failure(job, worker, error)
                failed |= {worker}
                failure = error
                if not error.retryable or len(failed) >= MAX_ATTEMPTS:
                    raise
            except BaseException:
                flight.close()
                raise

    def _note_failure(self, job: Job, worker: str, error: EngineError) -> None:
        logger.warning("request %s failed on %s: %s", job.request_id, worker, error)
        self._metrics.engine_failures[worker] = self._metrics.engine_failures.get(worker, 0) + 1
        self._engines.report_failure(worker, error)


def _route_request(job: Job, failed: frozenset[str]) -> RouteRequest:
    return RouteRequest(
        request_id=job.request_id,
        model=job.model,
        token_ids=job.prompt.ids,
        cache_salt=job.cache_salt,
        max_tokens=job.max_tokens,
        exclude=failed,
    )


def _engine_request(job: Job, placement: Placement) -> EngineRequest:
    return EngineRequest(
        request_id=job.request_id,
        model=job.model,
        token_ids_json=job.prompt.ids_json,
        prompt_tokens=len(job.prompt.ids),
        dp_rank=placement.target.dp_rank or None,
        sampling=job.sampling,
        top_level=job.top_level,
    )
