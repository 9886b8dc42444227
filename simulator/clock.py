"""The timing model: what takes how long, and a pace that does not drift."""

from __future__ import annotations

import asyncio

from simulator.settings import SimulatorSettings


class Timing:
    """Seconds of the modelled work, the speed-up applied."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self._prefill = settings.prefill_seconds_per_token / settings.speedup
        self.decode_step = settings.decode_seconds_per_step / settings.speedup

    def prefill(self, tokens: int) -> float:
        """Seconds to compute that many prompt tokens."""
        return tokens * self._prefill


class Pace:
    """Equal steps from the moment of creation: a late wake-up shortens the next sleep."""

    def __init__(self, step_seconds: float) -> None:
        self._step = step_seconds
        self._due = asyncio.get_running_loop().time()

    async def step(self) -> None:
        """Sleep until the next step is due; always lets others run."""
        self._due += self._step
        await asyncio.sleep(max(0.0, self._due - asyncio.get_running_loop().time()))
