"""Reserving what an attempt needs: one worker for all of it, or a decode and a prefill worker at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import msgspec

from gateway.serving.errors import bad_request
from gateway.serving.failures import Trail
from gateway.serving.inflight import InFlight
from gateway.serving.job import Job
from gateway.telemetry.metrics import Metrics
from router.messages import FullError, NoWorkerError, Placement, Release, Role, RouteRequest, Variant
from router.selector import Router

OnClosed = Callable[[InFlight], None]


class Places:
    """Asks the router. Decode is never without a prefill place beside it, and nothing waits in an engine."""

    def __init__(self, router: Router, metrics: Metrics, on_closed: OnClosed) -> None:
        self._router = router
        self._metrics = metrics
        self._on_closed = on_closed

    def lane(self, job: Job, trail: Trail) -> Hashable:
        """Jobs of one lane can be served by the same workers."""
        return job.model, job.pools, job.choices > 1, trail.excluded | job.unable

    def reserve(self, job: Job, trail: Trail, started: float | None) -> InFlight:
        """An attempt with its places. Raises FullError, NoWorkerError, RequestError."""
        out = trail.excluded | trail.avoided
        pair = self._router.prefers_pair(route_request(job, "aggregated", out))
        # Each choice would use the KV handle, which is good for one.
        ways = (
            [self._one] if job.choices > 1 else [self._pair, self._one] if pair else [self._one, self._pair]
        )
        failure: NoWorkerError | None = None
        for way in ways:
            try:
                return way(job, trail, started)
            except NoWorkerError as error:
                if failure is None or isinstance(error, FullError):
                    failure = error
        assert failure is not None
        if pair and job.choices > 1 and not isinstance(failure, FullError):
            raise bad_request("`n` above 1 needs a worker that prefills and decodes.", "n") from None
        raise failure

    def _one(self, job: Job, trail: Trail, started: float | None) -> InFlight:
        return self._attempt(self._route(job, "aggregated", trail), None, started)

    def _pair(self, job: Job, trail: Trail, started: float | None) -> InFlight:
        decode = self._route(job, "decode", trail)
        try:
            prefill = self._route(job, "prefill", trail, decode.pool)
        except BaseException:
            self._router.release(Release(decode.reservation))
            raise
        return self._attempt(decode, prefill, started)

    def _attempt(self, placement: Placement, prefill: Placement | None, started: float | None) -> InFlight:
        return InFlight(self._router, placement, prefill, self._metrics, started, self._on_closed)

    def decode_elsewhere(self, job: Job, trail: Trail, pool: str) -> InFlight:
        """A place for a decode leg alone. Raises NoWorkerError."""
        return self._attempt(self._route(job, "decode", trail, pool), None, None)

    def _route(self, job: Job, role: Role, trail: Trail, pool: str | None = None) -> Placement:
        """Avoided workers are taken where there is no other."""
        out = trail.excluded | trail.avoided
        try:
            return self._router.route(_request(job, role, out, pool))
        except NoWorkerError:
            if out == trail.excluded:
                raise
            return self._router.route(_request(job, role, trail.excluded, pool))


def _request(job: Job, role: Role, out: frozenset[str], pool: str | None) -> RouteRequest:
    request = route_request(job, role, out, at_once=True)
    if pool is None:
        return request
    # A KV cache never leaves its pool: its prompt is in the encoding of that one.
    own = route_request(job.of_pool(pool), role, out, at_once=True)
    return msgspec.structs.replace(own, pools=frozenset({pool}), variants=())


def route_request(job: Job, role: Role, out: frozenset[str], *, at_once: bool = False) -> RouteRequest:
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
        exclude=out | job.unable if job.unable else out,
        pools=job.pools,
        variants=variants,
        at_once=at_once,
    )
