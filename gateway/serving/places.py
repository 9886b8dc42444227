"""Reserving what an attempt needs: one worker for all of it, or a decode and a prefill worker at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial

import msgspec

from gateway.handoff.fabric import Fabric
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

    def __init__(self, router: Router, metrics: Metrics, on_closed: OnClosed, fabric: Fabric) -> None:
        self._router = router
        self._fabric = fabric
        self._metrics = metrics
        self._on_closed = on_closed

    def lane(self, job: Job, trail: Trail) -> Hashable:
        """Jobs of one lane can be served by the same workers."""
        return job.model, job.pools, job.one_worker, trail.excluded | job.unable

    def reserve(self, job: Job, trail: Trail, started: float | None) -> InFlight:
        """An attempt with its places. Raises FullError, NoWorkerError, RequestError."""
        pair = self._router.has_pairs and self._prefers_pair(job, trail)
        # Each choice would use the KV handle, which is good for one.
        ways = [self._one] if job.one_worker else [self._pair, self._one] if pair else [self._one, self._pair]
        failure: NoWorkerError | None = None
        for way in ways:
            try:
                return way(job, trail, started)
            except NoWorkerError as error:
                if failure is None or isinstance(error, FullError):
                    failure = error
        assert failure is not None
        if pair and job.one_worker and not isinstance(failure, FullError):
            name = "n" if job.choices > 1 else "logprobs"
            raise bad_request(f"This `{name}` needs a worker that prefills and decodes.", name) from None
        raise self._explained(failure)

    def _prefers_pair(self, job: Job, trail: Trail) -> bool:
        out = trail.excluded | trail.avoided | self._fabric.unpaired
        request = route_request(job, "aggregated", out)
        return self._router.prefers_pair(with_transfer(request, self._fabric))

    def _explained(self, failure: NoWorkerError) -> NoWorkerError:
        """With the pairs that could not be made: the router knows only that their workers were left out."""
        obstacles = self._fabric.obstacles.items()
        if not obstacles or isinstance(failure, FullError):
            return failure
        reasons = "; ".join(f"{prefill} and {decode}: {reason}" for (prefill, decode), reason in obstacles)
        return NoWorkerError(f"{failure}; never a pair: {reasons}")

    def _one(self, job: Job, trail: Trail, started: float | None) -> InFlight:
        return self._attempt(self._route(job, "aggregated", trail), None, started)

    def _pair(self, job: Job, trail: Trail, started: float | None) -> InFlight:
        decode = self._route(job, "decode", trail)
        if decode.prefills:  # It holds nearly all of the prompt.
            return self._attempt(decode, None, started)
        try:
            prefill = self._route(job, "prefill", trail, decode.pool, decode.target.worker)
        except BaseException:
            self._router.release(Release(decode.reservation))
            raise
        attempt = self._attempt(decode, prefill, started)
        tokens = len(job.of_pool(decode.pool).prompt.ids)
        legs = prefill.target.worker, decode.target.worker
        attempt.on_handed_over = partial(self._fabric.handed_over, *legs, tokens)
        return attempt

    def _attempt(self, placement: Placement, prefill: Placement | None, started: float | None) -> InFlight:
        return InFlight(self._router, placement, prefill, self._metrics, started, self._on_closed)

    def decode_elsewhere(self, job: Job, trail: Trail, pool: str) -> InFlight:
        """A place for a decode leg alone. Raises NoWorkerError."""
        return self._attempt(self._route(job, "decode", trail, pool), None, None)

    def _route(
        self, job: Job, role: Role, trail: Trail, pool: str | None = None, decode: str = ""
    ) -> Placement:
        """Avoided workers are taken where there is no other. `decode` is the other worker of a pair."""
        unfit, seconds = self._fit(job, role, pool, decode)
        excluded = trail.excluded | unfit
        out = excluded | trail.avoided
        try:
            return self._router.route(_request(job, role, out, pool, seconds))
        except NoWorkerError:
            if out == excluded:
                raise
            return self._router.route(_request(job, role, excluded, pool, seconds))

    def _fit(
        self, job: Job, role: Role, pool: str | None, decode: str
    ) -> tuple[frozenset[str], Mapping[str, float]]:
        """Workers that cannot be half of the pair; how long the KV cache is on its way to or from others."""
        if role == "aggregated":
            return frozenset(), {}
        tokens = len((job.of_pool(pool) if pool is not None else job).prompt.ids)
        if role == "decode":
            return self._fabric.unpaired, self._fabric.to_decode(tokens)
        return self._fabric.from_prefill(decode, tokens)


def _request(
    job: Job, role: Role, out: frozenset[str], pool: str | None, seconds: Mapping[str, float]
) -> RouteRequest:
    request = route_request(job, role, out, at_once=True)
    if seconds:
        request = msgspec.structs.replace(request, transfer_seconds=seconds)
    if pool is None:
        return request
    # A KV cache never leaves its pool: its prompt is in the encoding of that one.
    own = route_request(job.of_pool(pool), role, out, at_once=True)
    only = frozenset({pool})
    return msgspec.structs.replace(own, pools=only, variants=(), transfer_seconds=seconds)


def with_transfer(request: RouteRequest, fabric: Fabric) -> RouteRequest:
    """With the seconds that a prompt's KV cache takes to each decode worker."""
    seconds = fabric.to_decode(len(request.token_ids))
    return msgspec.structs.replace(request, transfer_seconds=seconds) if seconds else request


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
        session=job.session,
        labels=job.labels,
        variants=variants,
        at_once=at_once,
    )
