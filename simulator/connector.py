"""A worker's connector: turns a request's kv_transfer_params into legs, for better or worse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import web

from simulator import errors
from simulator.engine import Engine
from simulator.errors import ApiError
from simulator.exchange import Exchange
from simulator.faults import Faults
from simulator.handoff import Handoff
from simulator.kv.parameters import BadParametersError, TransferParameters, read_parameters, remote_blocks
from simulator.settings import SimulatorSettings

log = logging.getLogger(__name__)

DEATH_SECONDS = 0.1
"""From the engine's death to the server's: time for the requests in flight to hear of it."""
ENGINE_DIED = 1


class Connector:
    """One engine's. Without a transport it ignores kv_transfer_params, as a vLLM without connector does."""

    def __init__(
        self, settings: SimulatorSettings, engine: Engine, faults: Faults, rank: int | None = None
    ) -> None:
        """`rank` is the engine's number where there are several."""
        self._settings = settings
        self._engine = engine
        self._faults = faults
        self.handoff: Handoff | None = None
        if settings.kv_transport != "none":
            hybrid = engine.cache.has_states
            self.handoff = Handoff(settings, engine.memory.arena, faults, hybrid=hybrid, rank=rank)
        engine.handoff = self.handoff

    async def lifetime(self, app: web.Application) -> AsyncGenerator[None, None]:
        """Start before the application serves and close after it. Raises zmq.ZMQError, TransferError."""
        if self.handoff is not None:
            await self.handoff.start()
        yield
        if self.handoff is not None:
            await self.handoff.close()

    @contextmanager
    def rejecting(self, value: Any) -> Iterator[None]:
        """If the body raises ApiError, a decode leg's peer is told that nobody will come for its blocks."""
        try:
            yield
        except ApiError:
            with suppress(BadParametersError):
                parameters = read_parameters(value)
                if self.handoff is not None and parameters is not None and parameters.do_remote_prefill:
                    self.handoff.abandon(remote_blocks(parameters))
            raise

    def take_legs(self, exchange: Exchange, value: Any) -> None:
        """Raises ApiError: the parameters have killed the engine."""
        if self.handoff is None or value is None:
            return
        try:
            parameters = read_parameters(value) or TransferParameters()
            exchange.take_legs(parameters)
        except BadParametersError as error:
            log.error("%s", error)
            if not self._settings.survive_incomplete_params:
                self.die()
                raise errors.engine_dead() from None

    def die(self) -> None:
        """The engine is dead: what is in flight fails, then the process ends."""
        self._engine.die()
        asyncio.get_running_loop().call_later(DEATH_SECONDS, self._faults.exit, ENGINE_DIED)
