"""Requests whose client left between the legs: their decode worker still fetches the KV cache.

Only a decode worker that comes for them makes a prefill worker let go of its blocks before the lease ends. So
the legs run on to the first token, and are then aborted like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from gateway.engines.base import (
    EngineClient,
    EngineError,
    EngineRequest,
    EngineUsage,
    PromptLogprob,
    TokenLogprob,
)
from gateway.handoff.orphans import Orphans
from gateway.serving.inflight import InFlight


class Reaper:
    """Runs what is left of abandoned requests; nothing of it lasts longer than a lease."""

    def __init__(self, lease_seconds: float) -> None:
        self.orphans = Orphans(lease_seconds)
        self.reaped = 0
        """KV caches that were fetched although nobody wanted them any more."""
        self.transfer_seconds = 2 * lease_seconds
        """Most time from the start of a decode leg to its first output: the transfer, mostly."""
        self._lease_seconds = lease_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Requests that it still has."""
        return len(self._tasks)

    def take_over(self, attempt: InFlight) -> None:
        """The client of an attempt has left: end it, at once or when the blocks are free."""
        legs = attempt.legs
        if legs is None or legs.done():
            self.give_up(attempt)
        elif not attempt.pinned:
            legs.cancel()
            attempt.close()  # An engine frees the blocks of a prefill leg that is aborted.
        else:
            self._run(self._finish(attempt, legs))

    def give_up(self, attempt: InFlight) -> None:
        """Close an attempt; blocks that it leaves behind are orphans."""
        attempt.close()
        if attempt.pinned:
            self.orphans.add()

    def release(self, attempt: InFlight, engine: EngineClient, decode: EngineRequest) -> None:
        """`decode` reached nobody: another worker, on which `attempt` is, fetches its blocks."""
        self._run(self._fetch(attempt, engine, decode))

    def close(self) -> None:
        """The gateway goes: the leases end what is left."""
        for task in self._tasks:
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, attempt: InFlight, legs: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(self._lease_seconds):
                await legs
            self.reaped += 1
        except Exception:
            legs.cancel()
        finally:
            self.give_up(attempt)

    async def _fetch(self, attempt: InFlight, engine: EngineClient, decode: EngineRequest) -> None:
        sampling = {**decode.sampling, "max_tokens": b"1"}
        sampling.pop("min_tokens", None)
        request = msgspec.structs.replace(decode, sampling=sampling)
        try:
            async with asyncio.timeout(self._lease_seconds):
                call = await engine.start(request, _Nobody)
                try:
                    await asyncio.shield(call.done)
                finally:
                    call.abort()
            self.reaped += 1
        except (EngineError, TimeoutError):
            self.orphans.add()
        finally:
            attempt.close()


class _Nobody:
    """A sink for what nobody wants."""

    def on_logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> None: ...

    def on_prompt_logprobs(self, logprobs: Sequence[PromptLogprob]) -> None: ...

    def on_tokens(self, index: int, token_ids: Sequence[int]) -> None: ...

    def on_text(self, index: int, text: str) -> None: ...

    def on_finish(self, index: int, reason: str, stop_reason: int | str | None) -> None: ...

    def on_usage(self, usage: EngineUsage) -> None: ...

    def flush(self) -> None: ...
