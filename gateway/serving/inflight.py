"""One attempt at a request on its workers, and the only place that gives up what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.engines.base import EngineCall, EngineClient, EngineError, EngineRequest, PrefillAnswer
from gateway.serving.generation import Generation, Observer
from gateway.telemetry.metrics import Metrics
from router.messages import FirstToken, Placement, Release
from router.selector import Router


class InFlight:
    """Owns reservations and an engine call; `close` gives up all of it exactly once, whatever happened.

    With a `prefill` placement the answer is decoded at `placement` from a KV cache that is computed there.
    """

    def __init__(
        self,
        router: Router,
        placement: Placement,
        prefill: Placement | None,
        metrics: Metrics,
        started: float | None,
        on_closed: Callable[[InFlight], None],
    ) -> None:
        """`started` is when the request came in; None for what goes on with an answer."""
        self.placement = placement
        self.prefill = prefill
        """Where the prompt is computed, when that is elsewhere."""
        self.generation: Generation | None = None
        self.legs: asyncio.Task[None] | None = None
        """Both legs up to the first output, of a pair."""
        self.pinned = False
        """The prefill worker keeps blocks for this attempt, until the answer begins."""
        self.leg_failure: EngineError | None = None
        """Of a prefill leg that ran beside decode."""
        self.on_handed_over: Callable[[float], None] | None = None
        """Told the seconds from prefill's answer to the first token."""
        self.prefill_cached: int | None = None
        self._router = router
        self._metrics = metrics
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        # Futures of its own: a cancelled wait must not cancel the engine's.
        self._output: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._call: EngineCall | None = None
        self._cut_off: EngineError | None = None
        self._stopped = False
        self._failed = False
        self._closed = False
        self._started = started
        self._leg: asyncio.Task[PrefillAnswer] | None = None
        self._prefill_open = prefill is not None
        self._prefill_at = 0.0
        self._last = 0.0
        self.first_token_at = 0.0
        """Event-loop time, in seconds; 0 before there is one."""

    async def start(
        self, engine: EngineClient, request: EngineRequest, listen: Callable[[Observer], Generation]
    ) -> None:
        """Returns with the first output, or at the end of a generation without any. Raises EngineError."""

        def sink() -> Generation:
            self.generation = listening = listen(self)
            return listening

        starting = engine.start(request, sink)
        try:
            self._call = call = await (starting if self._leg is None else self._beside(self._leg, starting))
        except EngineError as error:
            self._failed = error.blames_worker and self.leg_failure is None
            raise
        if self._stopped:
            call.abort()
        call.done.add_done_callback(self._on_done)
        await self._output
        if self._cut_off is not None:
            raise self._cut_off
        if call.done.done():
            call.done.result()

    async def wait(self) -> None:
        """The end of the generation. Raises EngineError."""
        assert self._call is not None
        await self._ended
        if self._cut_off is not None:
            raise self._cut_off
        self._call.done.result()

    def cut_off(self, error: EngineError) -> None:
        """End it now, with this failure."""
        self._cut_off = error
        if self._call is not None:
            self._call.abort()
        self._on_done(None)

    @property
    def is_cut_off(self) -> bool:
        return self._cut_off is not None

    def pause(self) -> None:
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        if self._call is not None:
            self._call.resume()

    def close(self) -> None:
        """Stop the engine call if it runs and release what is reserved."""
        if self._closed:
            return
        self._closed = True
        if self._call is not None:
            self._failed = _blames_worker(self._call.done)
            self._call.abort()
        if self._leg is not None:
            self._leg.remove_done_callback(self._leg_ended)
            self._leg.cancel()
        self.prefill_ended(failed=False)
        generation = self.generation
        self._router.release(
            Release(
                reservation=self.placement.reservation,
                output_tokens=generation.completion_tokens if generation is not None else 0,
                cached_tokens=None if self.prefill is not None else self.cached_tokens,
                failed=self._failed,
            )
        )
        if generation is not None:
            generation.leave(self)
        self._on_closed(self)

    @property
    def pool(self) -> str:
        """Of the worker that generates."""
        return self.placement.pool

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were not computed for this request, as the worker that computed it said.

        A decode worker counts what was transferred to it as cached: that is not what the client means.
        """
        if self.prefill is not None and (self._leg is None or self.prefill_cached is not None):
            return self.prefill_cached
        usage = self.generation.usage if self.generation is not None else None
        return usage.cached_tokens if usage is not None else None

    @property
    def workers(self) -> str:
        """Who serves it, for a person to read: `prefill-0 and decode-1`, or one name."""
        legs = (self.prefill, self.placement)
        return " and ".join(leg.target.worker for leg in legs if leg is not None)

    @property
    def overlap_tokens(self) -> int:
        """The cached tokens that the router expected."""
        return (self.prefill or self.placement).overlap_tokens

    # The prefill leg

    def prefill_started(self) -> None:
        self._prefill_at = self._loop.time()

    def prefilled(self, cached_tokens: int | None) -> None:
        """The prefill leg has answered: with its first token, and all that it generates."""
        assert self.prefill is not None
        self.prefill_cached = cached_tokens
        self._router.first_token(FirstToken(self.prefill.reservation, cached_tokens))

    def prefill_ended(self, *, failed: bool) -> None:
        """The prefill leg is over, well or not: its reservation is released. Harmless when it was over."""
        if not self._prefill_open:
            return
        self._prefill_open = False
        assert self.prefill is not None
        self._router.release(Release(self.prefill.reservation, failed=failed))
        if self._prefill_at:
            now = self._loop.time()
            self._metrics.prefill_leg.observe(now - self._prefill_at)
            self._prefill_at = now

    def prefill_runs(self, leg: asyncio.Task[PrefillAnswer]) -> None:
        """The prefill leg goes on beside decode: when one of them fails, the other is ended."""
        self._leg = leg
        leg.add_done_callback(self._leg_ended)

    @property
    def leg_runs(self) -> bool:
        """A prefill leg is under way beside decode."""
        return self._leg is not None and self._prefill_open

    def _leg_ended(self, leg: asyncio.Task[PrefillAnswer]) -> None:
        error = leg.exception()
        if error is None:
            self.prefilled(leg.result().cached_tokens)
        self.prefill_ended(failed=isinstance(error, EngineError) and error.blames_worker)
        if error is not None and not self._last:  # else decode has what it needs
            self.leg_failure = (
                error if isinstance(error, EngineError) else EngineError(f"{error!r}", retryable=True)
            )
            self.cut_off(self.leg_failure)

    async def _beside(
        self, leg: asyncio.Task[PrefillAnswer], starting: Coroutine[Any, Any, EngineCall]
    ) -> EngineCall:
        """What `starting` gives, unless the leg fails first."""
        start = self._loop.create_task(starting)
        try:
            await asyncio.wait({start, leg}, return_when=asyncio.FIRST_COMPLETED)
            if leg.done() and not start.done() and leg.exception() is None:
                await asyncio.wait({start})
            if not start.done() and self.leg_failure is not None:
                raise self.leg_failure
            return await start
        finally:
            start.cancel()

    # Observer

    def on_progress(self, new_tokens: int) -> None:
        now = self._now()
        if self._last:
            self._metrics.inter_token.observe_many((now - self._last) / new_tokens, new_tokens)
        else:
            self._on_first_token(now)
        self._last = now
        self._metrics.output_tokens += new_tokens

    def _on_first_token(self, now: float) -> None:
        self.first_token_at = now
        if self._started is not None:
            self._metrics.first_token.observe(now - self._started)
        if self.prefill is not None and self._leg is None:
            self.pinned = False
            self._metrics.handoff.observe(now - self._prefill_at)
            if self.on_handed_over is not None:
                self.on_handed_over(now - self._prefill_at)
        self._router.first_token(FirstToken(self.placement.reservation))

    def on_output(self) -> None:
        if not self._output.done():
            self._output.set_result(None)

    def on_stopped(self) -> None:
        self._stopped = True
        if self._call is not None:
            self._call.abort()

    def _on_done(self, _: asyncio.Future[None] | None) -> None:
        self.on_output()
        if not self._ended.done():
            self._ended.set_result(None)


def _blames_worker(done: asyncio.Future[None]) -> bool:
    if not done.done() or done.cancelled():
        return False
    error = done.exception()
    return isinstance(error, EngineError) and error.blames_worker
