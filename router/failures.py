"""Failures in a row: a worker that fails at once has an empty queue and must not look idle for that."""

from __future__ import annotations

_FIRST, _LONGEST = 0.5, 30.0
"""Seconds that the first failure counts, and the most that many in a row do; each doubles the last."""


class Failures:
    """Of one rank."""

    __slots__ = ("_until", "in_a_row")

    def __init__(self) -> None:
        self.in_a_row = 0
        self._until = 0.0

    def failed(self, now: float) -> None:
        """A request failed there, and the rank is to blame."""
        self._until = now + min(_FIRST * 2.0 ** min(self.in_a_row, 16), _LONGEST)
        self.in_a_row += 1

    def succeeded(self) -> None:
        """A first token came: it works."""
        self.in_a_row = 0
        self._until = 0.0

    def seconds(self, now: float) -> float:
        """What they count as, as if so much work waited; shrinks as time passes."""
        return max(self._until - now, 0.0) if self.in_a_row else 0.0
