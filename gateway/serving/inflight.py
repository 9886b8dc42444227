"""One request on one worker, and the only place that gives up what it holds."""

from __future__ import annotations

import asyncio

from gateway.engines.base import EngineCall, EngineClient, EngineRequest
from gateway.serving.generation import Generation, GenerationFactory
from gateway.telemetry.metrics import Metrics
from router.messages import FirstToken, Placement, Release
from router.selector import Router


class InFlight:
    """Owns a reservation and an engine call; `close` releases both exactly once, whatever happened."""

    def __init__(self, router: Router, placement: Placement, metrics: Metrics, started: float) -> None:
        self.placement = placement
        self.generation: Generation | None = None
        self._router = router
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        # Futures of its own: a cancelled wait must not cancel the engine's.
        self._output: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._call: EngineCall | None = None
        self._stopped = False
        self._closed = False
        self._started = started
        self._last = 0.0

    async def start(
        self, engine: EngineClient, request: EngineRequest, generation: GenerationFactory
    ) -> None:
        """Returns with the first output, or at the end of a generation without any. Raises EngineError."""
        self.generation = generation(self)
        self._call = call = await engine.start(request, self.generation)
        if self._stopped:
            call.abort()
        call.done.add_done_callback(self._on_done)
        await self._output
        if call.done.done():
            call.done.result()

    async def wait(self) -> None:
        """The end of the generation. Raises EngineError."""
        assert self._call is not None
        await self._ended
        self._call.done.result()

    def pause(self) -> None:
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        if self._call is not None:
            self._call.resume()

    def close(self) -> None:
        """Stop the engine call if it runs and release the reservation."""
        if self._closed:
            return
        self._closed = True
        if self._call is not None:
            self._call.abort()
        generation = self.generation
        usage = generation.usage if generation is not None else None
        self._router.release(
            Release(
                reservation=self.placement.reservation,
                output_tokens=generation.completion_tokens if generation is not None else 0,
                cached_tokens=usage.cached_tokens if usage is not None else None,
            )
        )

    # Observer

    def on_progress(self, new_tokens: int) -> None:
        now = self._loop.time()
        if self._last:
            self._metrics.inter_token.observe_many((now - self._last) / new_tokens, new_tokens)
        else:
            self._metrics.first_token.observe(now - self._started)
            self._router.first_token(FirstToken(self.placement.reservation))
        self._last = now
        self._metrics.output_tokens += new_tokens

    def on_output(self) -> None:
        if not self._output.done():
            self._output.set_result(None)

    def on_stopped(self) -> None:
        self._stopped = True
        if self._call is not None:
            self._call.abort()

    def _on_done(self, _: asyncio.Future[None]) -> None:
        self.on_output()
        if not self._ended.done():
            self._ended.set_result(None)
