"""The workers: probing, health, and telling the router who is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import aiohttp
import msgspec

from gateway.config import WorkerSettings
from gateway.engines.base import EngineClient, EngineError
from gateway.engines.openai import OpenAiEngine
from gateway.engines.parameters import absent_from
from gateway.engines.sglang import SglangEngine
from gateway.engines.vllm import Endpoint, VllmEngine
from gateway.fleet.probe import ProbeError, healthy, look_at, probe
from gateway.fleet.vitals import Vitals
from gateway.fleet.worker import Engine, Profile, Worker, WorkerState
from router.messages import WorkerInfo
from router.selector import Router

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
"""Between two tries to reach a worker that is not there."""
HEALTH_SECONDS = 2.0
LIFE_SECONDS = 10.0
"""Between looks at whether a worker that is well is still the same one."""
HEALTH_FAILURES = 3
"""Slow answers in a row before a worker that still accepts connections is taken out."""


class Feeds(Protocol):
    """Who follows the workers' KV events."""

    async def start(self, worker: Worker) -> None: ...

    async def stop(self, worker: Worker) -> None: ...

    def describe(self, name: str) -> list[dict[str, Any]]:
        """State of each of a worker's feeds."""
        ...


class Watcher(Protocol):
    """Who is told of what becomes of workers."""

    def joined(self, worker: Worker) -> None:
        """It is ready, with a profile."""
        ...

    def left(self, worker: Worker) -> None: ...

    def looked(self, worker: Worker, vitals: Vitals) -> None:
        """Its metrics were read."""
        ...


class Fleet:
    """Keeps every configured worker's state true; one task a worker."""

    def __init__(
        self,
        settings: Sequence[WorkerSettings],
        router: Router,
        feeds: Feeds,
        watchers: Sequence[Watcher] = (),
        *,
        health_seconds: float | None = None,
        health_timeout_seconds: float = 5.0,
    ) -> None:
        """A worker is asked every `health_seconds` whether it is well, and has the timeout to answer."""
        self._health_seconds = HEALTH_SECONDS if health_seconds is None else health_seconds
        self._health_timeout = health_timeout_seconds
        self.workers = {worker.name: worker for worker in map(Worker, settings)}
        self._router = router
        self._feeds = feeds
        self._watchers = watchers
        self._wake = {name: asyncio.Event() for name in self.workers}
        self._renewed: set[str] = set()
        """Workers whose answers come from another start than the one that was probed."""
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._pools: dict[str, frozenset[str]] = {}
        """By model."""
        self._absent: dict[str, frozenset[str]] = {}
        """Sampling parameters that workers do not have; only workers that lack some."""

    async def start(self) -> None:
        self._session = aiohttp.ClientSession()
        for worker in self.workers.values():
            self._tasks.append(asyncio.create_task(self._watch(worker), name=f"watch {worker.name}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self.workers.values():
            await self._take_out(worker, "the gateway stops")
        if self._session is not None:
            await self._session.close()

    # what serving asks

    def engine(self, name: str) -> EngineClient | None:
        """Client of a worker that takes token ids, or None."""
        engine = self.workers[name].engine if name in self.workers else None
        return None if isinstance(engine, OpenAiEngine) else engine

    def relay(self, name: str) -> OpenAiEngine | None:
        """Client of a worker that requests are passed through to, or None."""
        engine = self.workers[name].engine if name in self.workers else None
        return engine if isinstance(engine, OpenAiEngine) else None

    def report_failure(self, name: str, error: EngineError) -> None:
        """A request failed on a worker: look at it now instead of at the next health check."""
        if error.status is None and name in self._wake:
            self._wake[name].set()

    def models(self) -> list[str]:
        """Models that some ready worker serves."""
        ready = (w.profile for w in self.workers.values() if w.state is WorkerState.READY and w.profile)
        return sorted({model for profile in ready for model in profile.models})

    def only_relays(self, model: str) -> bool:
        """Every ready worker of the model takes requests only as they are."""
        ready = [w for w in self.workers.values() if w.profile and w.engine and model in w.profile.models]
        return bool(ready) and all(isinstance(worker.engine, OpenAiEngine) for worker in ready)

    def describe(self, name: str) -> dict[str, Any]:
        """A worker for a person to read."""
        worker = self.workers[name]
        profile = msgspec.to_builtins(worker.profile) if worker.profile is not None else None
        feeds = self._feeds.describe(name)
        settings = worker.settings
        return {
            "name": name,
            "url": settings.url,
            "role": worker.role,
            "pool": settings.pool,
            "labels": dict(settings.labels),
            "configured": {
                name: getattr(settings, name)
                for name in ("engine", "kv_events", "kv_replay", "max_num_seqs", "side_channel")
            },
            "state": worker.state.value,
            "reason": worker.reason,
            "profile": profile,
            "engine_id": getattr(worker.engine, "engine_id", None),
            "feeds": feeds,
        }

    def knows(self, model: str) -> bool:
        """Some worker serves the model, or did."""
        return model in self._pools

    @property
    def has_known_models(self) -> bool:
        return bool(self._pools)

    def context_length(self, model: str) -> int | None:
        """The smallest context among the workers that serve the model, in tokens."""
        profiles = (worker.profile for worker in self.workers.values())
        lengths = (each.context_length for each in profiles if each and model in each.models)
        return min((length for length in lengths if length), default=None)

    def pools(self, model: str) -> frozenset[str]:
        """Pools with a worker that serves the model, or did."""
        return self._pools.get(model, frozenset())

    def unable(self, parameters: Collection[str]) -> frozenset[str]:
        """Workers that do not have one of these sampling parameters."""
        if not self._absent:
            return frozenset()
        return frozenset(name for name, absent in self._absent.items() if not absent.isdisjoint(parameters))

    def serves_without(self, model: str, workers: Collection[str]) -> bool:
        """Some worker that serves the model, or did, is not one of these."""
        others = (each for each in self.workers.values() if each.name not in workers)
        return any(each.profile and model in each.profile.models for each in others)

    # one worker's life

    async def _watch(self, worker: Worker) -> None:
        while True:
            try:
                await self._connect(worker)
                await self._stay_healthy(worker)
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("watching %s failed", worker.name)
                await self._take_out(worker, "internal error")
                await asyncio.sleep(PROBE_SECONDS)

    async def _connect(self, worker: Worker) -> None:
        assert self._session is not None
        while True:
            reason = await healthy(self._session, worker.settings, self._health_timeout)
            if reason is None:
                try:
                    profile = await probe(self._session, worker.settings)
                    break
                except ProbeError as error:
                    reason = str(error)
            self._note(worker, reason)
            await asyncio.sleep(PROBE_SECONDS)
        await self._put_in(worker, profile)

    async def _put_in(self, worker: Worker, profile: Profile) -> None:
        worker.profile, worker.state, worker.reason = profile, WorkerState.READY, "ready"
        self._renewed.discard(worker.name)
        worker.engine = _engine(worker.settings.url, profile, lambda: self._renew(worker.name))
        self._absent.pop(worker.name, None)
        if absent := absent_from(profile.endpoint):
            self._absent[worker.name] = absent
        for model in profile.models:
            self._pools[model] = self.pools(model) | {worker.settings.pool}
        self._router.add_worker(
            WorkerInfo(
                worker=worker.name,
                models=profile.models,
                adapters=profile.adapters,
                role=worker.role,
                dp_ranks=profile.dp_ranks,
                max_num_seqs=profile.max_num_seqs,
                labels=worker.settings.labels,
                kv_events=bool(profile.kv_sources),
                states_at_ends=profile.states_at_ends,
                pool=worker.settings.pool,
            )
        )
        for watcher in self._watchers:
            watcher.joined(worker)
        await self._feeds.start(worker)
        logger.info(
            "worker %s is ready: %s, models %s, %d KV event sources",
            *(worker.name, profile.endpoint, ", ".join(profile.models), len(profile.kv_sources)),
        )

    async def _stay_healthy(self, worker: Worker) -> None:
        """Returns when the worker has been taken out."""
        assert self._session is not None
        failures = 0
        wake = self._wake[worker.name]
        looked = -LIFE_SECONDS  # at once: what its counters stand at now is not of what comes
        while True:
            woken = await _wait(wake, self._health_seconds)
            reason = await healthy(self._session, worker.settings, self._health_timeout)
            failures = failures + 1 if reason else 0
            if reason and (woken or failures >= HEALTH_FAILURES or "Connect" in reason):
                await self._take_out(worker, reason)
                return
            now = asyncio.get_running_loop().time()
            if reason is None and (woken or now - looked >= LIFE_SECONDS):
                looked = now
                if await self._began_anew(worker):
                    await self._take_out(worker, "it was started anew")
                    return

    async def _began_anew(self, worker: Worker) -> bool:
        """Behind the address is another start of the worker: what is known of it is no longer true."""
        assert self._session is not None
        assert worker.profile is not None
        if worker.name in self._renewed:
            return True
        look = await look_at(self._session, worker.settings, worker.profile)
        known = worker.profile.life
        if look.life is not None and known is not None and look.life != known:
            return True
        if look.vitals is not None:
            for watcher in self._watchers:
                watcher.looked(worker, look.vitals)
        return False

    def _renew(self, name: str) -> None:
        self._renewed.add(name)
        self._wake[name].set()

    async def _take_out(self, worker: Worker, reason: str) -> None:
        """The worker is gone, and with it what it had cached."""
        if worker.state is not WorkerState.READY:
            return
        logger.warning("worker %s is down: %s", worker.name, reason)
        worker.state, worker.reason = WorkerState.DOWN, reason
        self._router.remove_worker(worker.name)
        for watcher in self._watchers:
            watcher.left(worker)
        await self._feeds.stop(worker)
        engine, worker.engine = worker.engine, None
        if engine is not None:
            engine.close()

    def _note(self, worker: Worker, reason: str) -> None:
        if worker.reason != reason:
            worker.reason = reason
            logger.warning("worker %s cannot be used yet: %s", worker.name, reason)


def _engine(url: str, profile: Profile, on_new_life: Callable[[], None]) -> Engine:
    if profile.endpoint == "openai":
        return OpenAiEngine(url)
    if profile.endpoint == "sglang":
        return SglangEngine(url, bootstrap=profile.bootstrap, low_priority_first=profile.low_priority_first)
    endpoint: Endpoint = "generate" if profile.endpoint == "generate" else "completions"
    return VllmEngine(url, endpoint, on_new_life)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """True when the event came before the time was up; the event is reset."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
