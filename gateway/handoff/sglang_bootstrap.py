"""SGLang's bootstrap: both legs run at once and meet in a room, whose number both are given.

Prefill pushes the blocks when decode has said where they go, and answers after that. A leg without the other
waits for minutes, and two requests in one room get each other's KV cache with status 200: rooms are random,
fresh for every attempt, and when one leg fails the other is aborted by its request id.
"""

from __future__ import annotations

import asyncio
import secrets

import msgspec

from gateway.engines.base import EngineClient, EngineError, EngineRequest
from gateway.engines.sglang import Bootstrap, SglangEngine
from gateway.handoff.base import Handle, PrefillResult

ROOM_BITS = 63
START_SECONDS = 5.0
"""From the prefill leg's start to that of decode, which follows at once."""


class SglangBootstrap:
    """The handoff of SGLang workers; see `Handoff`."""

    async def prefill(self, engine: EngineClient, request: EngineRequest) -> PrefillResult:
        """Start the leg. Raises EngineError: the worker is not for prefill."""
        if not isinstance(engine, SglangEngine) or engine.bootstrap is None:
            raise EngineError("the worker has no bootstrap server for decode workers", retryable=True)
        fields = room_fields(engine.bootstrap, request.dp_rank)
        leg = msgspec.structs.replace(request, top_level={**request.top_level, **fields}, once=True)
        loop = asyncio.get_running_loop()
        handle = Handle(fields, request.token_ids_json, START_SECONDS, loop.time)
        return PrefillResult(handle, None, loop.create_task(engine.prefill(leg)))


def room_fields(bootstrap: Bootstrap, dp_rank: int | None) -> dict[str, bytes]:
    """Fields of both legs' bodies: where they meet. The room also says prefill's rank."""
    rank, size = dp_rank or 0, bootstrap.dp_size
    room = secrets.randbits(ROOM_BITS) // size * size + rank
    if room >= 1 << ROOM_BITS:
        room -= size
    fields = {
        "bootstrap_host": msgspec.json.encode(bootstrap.host),
        "bootstrap_port": b"%d" % bootstrap.port,
        "bootstrap_room": b"%d" % room,
    }
    return fields if size == 1 else {**fields, "disagg_prefill_dp_rank": b"%d" % rank}
