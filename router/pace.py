"""How fast ranks prefill, learned from first tokens.

A rank prefills what it was given in turn, so what it did for a prompt is the time since the first token
before, or since the prompt came to an idle rank. Single times say little (prompts are computed in batches,
and more may be cached than was announced), so sums are compared, and a rank differs from its pool only as far
as much work has shown that it does.
"""

from __future__ import annotations

_KEPT = 0.999
"""What a prefill leaves of the sums before it: a thousand prefills ago counts a third."""
_TRUST = 300.0
"""Seconds of prefill after which a rank's own pace weighs as much as the pool's."""
_SLOWEST, _FASTEST = 20.0, 0.05


class Pace:
    """Of a pool or, below one, of a rank."""

    __slots__ = ("_pool", "_predicted", "_took", "factor")

    def __init__(self, pool: Pace | None = None) -> None:
        self._pool = pool
        trust = 1.0 if pool is None else 0.0
        self._predicted = self._took = trust
        self.factor: float = 1.0 if pool is None else pool.factor
        """Seconds that a prefill takes for each second that it should take by the constants; bounded."""

    def learn(self, predicted: float, took: float) -> None:
        """A prefill that should have taken `predicted` seconds by the constants took `took`."""
        pool = self._pool
        self._predicted = _KEPT * self._predicted + predicted
        self._took = _KEPT * self._took + took
        if pool is None:
            factor = self._took / self._predicted
        else:
            pool.learn(predicted, took)
            factor = (self._took + _TRUST * pool.factor) / (self._predicted + _TRUST)
        self.factor = min(max(factor, _FASTEST), _SLOWEST)
