"""`/sim`: what a simulated worker has beside vLLM's endpoints. Faults go in, its state comes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec
from aiohttp import web

from simulator.connector import Connector
from simulator.engine import Engine
from simulator.errors import ApiError
from simulator.faults import Faults
from simulator.replies import Json
from simulator.settings import SimulatorSettings

PREFIX = "/sim/"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Rank(Protocol):
    """What is looked at of a rank."""

    @property
    def engine(self) -> Engine: ...

    @property
    def connector(self) -> Connector: ...


class Admin:
    """The endpoints, and the middleware that lets faults happen to all others."""

    def __init__(self, settings: SimulatorSettings, ranks: Iterable[Rank], faults: Faults) -> None:
        self._settings = settings
        self._ranks = ranks
        self._faults = faults

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get(PREFIX + "state", self._state)
        app.router.add_post(PREFIX + "fault", self._fault)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Freeze and refuse, except under /sim."""
        if request.path.startswith(PREFIX):
            return await handler(request)
        await self._faults.thawed()
        if request.method == "POST" and self._faults.refuses():
            status = self._faults.settings.refuse_status
            raise ApiError("The engine is overloaded; try again later.", status=status)
        return await handler(request)

    async def _fault(self, request: web.Request) -> web.Response:
        """Set the faults that the body names; the answer says which are in force."""
        try:
            faults = self._faults.set(await request.read())
        except msgspec.DecodeError as error:
            raise ApiError(str(error)) from None
        return _json(msgspec.to_builtins(faults))

    async def _state(self, request: web.Request) -> web.Response:
        """See `state`."""
        return _json(
            {
                "name": self._settings.name,
                "role": self._settings.role,
                "transport": self._settings.kv_transport,
                "sim_kv_violations": sum(rank.engine.memory.violations for rank in self._ranks),
                "faults": msgspec.to_builtins(self._faults.settings),
                "ranks": [state(rank) for rank in self._ranks],
            }
        )


def state(rank: Rank) -> Json:
    """One rank now: what runs, what is pinned, what was wrong."""
    engine, handoff = rank.engine, rank.connector.handoff
    shown: Json = {
        "running": engine.counters.running,
        "waiting": engine.counters.waiting,
        "kv_cache_usage": engine.cache.usage(),
        "sim_kv_violations": engine.memory.violations,
        "arena_bytes": engine.memory.arena.nbytes,
        "block_bytes": engine.memory.arena.block_bytes,
    }
    if handoff is None:
        return shown
    return shown | {
        "engine_id": handoff.engine_id,
        "side_channel": handoff.endpoint,
        "transport": handoff.transport.describe(),
        "pinned_requests": len(handoff.leases),
        "pinned_blocks": handoff.leases.blocks,
        "lease_seconds": handoff.leases.seconds,
        "expired_requests": handoff.leases.expired,
        "late_notifications": handoff.leases.late_notifications,
        "heartbeats": handoff.leases.heartbeats,
        "transfers": handoff.stats.nbytes.count,
        "transferred_bytes": handoff.stats.nbytes.sum,
        "transfer_seconds": handoff.stats.seconds.sum,
        "transfer_descriptors": handoff.stats.descriptors.sum,
        "failed_transfers": handoff.stats.failed_transfers,
    }


def _json(value: Json) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), headers={"Content-Type": "application/json"})
