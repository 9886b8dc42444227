"""What was used in the last minute, exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SECONDS = 60.0


class Use:
    """An amount that counts from one moment on; it may be corrected while it counts."""

    __slots__ = ("amount", "at")

    def __init__(self, at: float, amount: int) -> None:
        self.at = at
        self.amount = amount


class Window:
    """A sliding minute: the amounts of any 60 seconds together stay within the limit when they are taken."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        self._uses: deque[Use] = deque()
        self._total = 0

    def take(self, amount: int) -> Use | float:
        """The use, or the seconds until so much may be taken; infinity for more than the limit."""
        now = self._clock()
        self._expire(now)
        excess = self._total + amount - self.limit
        if excess <= 0:
            use = Use(now, amount)
            self._uses.append(use)
            self._total += amount
            return use
        for use in self._uses:
            excess -= use.amount
            if excess <= 0:
                return use.at + SECONDS - now
        return float("inf")

    def correct(self, use: Use, amount: int) -> None:
        """It was less, or more, than had been taken. What comes to light after the minute counts from now."""
        now = self._clock()
        self._expire(now)
        if now - use.at < SECONDS:
            self._total += amount - use.amount
        elif amount > use.amount:
            self._uses.append(Use(now, amount - use.amount))
            self._total += amount - use.amount
        use.amount = amount

    def _expire(self, now: float) -> None:
        uses = self._uses
        while uses and now - uses[0].at >= SECONDS:
            self._total -= uses.popleft().amount
