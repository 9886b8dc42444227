"""When the gateway last read from its sockets for certain: what is read now may have waited there."""

from __future__ import annotations

import asyncio


class Pulse:
    """Ticks while prefill legs are under way. After the process, or its loop, stood still it shows when that
    began: what is read then may have been sent from that moment on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._legs = 0
        self._last = self._before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A leg begins."""
        self._legs += 1
        if self._timer is None:
            self._last = self._before = asyncio.get_running_loop().time()
            self._tick()

    def end(self) -> None:
        """A leg is over."""
        self._legs -= 1
        if not self._legs and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def read_until(self) -> float:
        """Loop time up to which everything that had come has been read; two ticks back, as the last one may
        have come before the sockets had their turn."""
        return self._before

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._before, self._last = self._last, loop.time()
        self._timer = loop.call_later(self._seconds, self._tick)
