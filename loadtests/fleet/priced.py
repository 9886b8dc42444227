"""A cost that is proposed for the router's kv policy, and the same with another price, for comparison.

    cost = wait + (1 + price) x prefill + a little for each sequence that decodes        (seconds)

The wait is what a worker has been given to prefill and has not done by now. The price is 0 in an idle fleet,
where the soonest first token wins; the busier the fleet, the more of those who come later are delayed by a
second of prefill, so workers that hold the prompt gain weight. No thresholds between modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Protocol

import msgspec

from loadtests.fleet.view import Flight, Prompt, WorkerView, lowest

_LEAST_LEFT = 0.05
"""Share of its predicted prefill that a prompt without a first token has before it."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, for an engine that nobody has measured: a pace learned from first tokens corrects them."""

    prefill: float = 0.012
    """Of any prompt, however short."""
    per_token: float = 1 / 20_000
    """Of an uncached prompt token."""
    per_token_pair: float = 1 / 20_000 / 60_000
    """Of an uncached prompt token, for each token before it."""
    per_sequence: float = 0.002
    """That each sequence in flight takes from a prefill beside it."""


class Price(Protocol):
    """Seconds that a second of prefill costs those who come later."""

    def now(self, waits: Sequence[float]) -> float:
        """With so many seconds to wait at each worker."""

    def placed(self, waits: Sequence[float], prefill: float) -> None:
        """A prompt found these waits and was placed where it takes `prefill` seconds."""


class BusyPrice:
    """Goes by the share of workers that are prefilling whenever a prompt arrives: no rates, no clock."""

    recent, gain, steepness, slack = 0.05, 3.0, 6, 0.05

    def __init__(self) -> None:
        self.busy = 0.0
        """Moving mean of the share."""

    def now(self, waits: Sequence[float]) -> float:
        return self.gain * self.busy**self.steepness / (1 + self.slack - self.busy)

    def placed(self, waits: Sequence[float], prefill: float) -> None:
        share = sum(wait > 0 for wait in waits) / len(waits)
        self.busy += self.recent * (share - self.busy)


class WaitPrice:
    """Goes by the median wait over the usual prefill of a request, beyond the first such."""

    recent, gain, free, most = 0.01, 10.0, 1.0, 100.0

    def __init__(self) -> None:
        self.usual = 0.0
        """Moving mean; 0 before the first request."""

    def now(self, waits: Sequence[float]) -> float:
        if not self.usual:
            return 0.0
        return min(self.gain * max(0.0, median(waits) / self.usual - self.free), self.most)

    def placed(self, waits: Sequence[float], prefill: float) -> None:
        self.usual += (self.recent if self.usual else 1.0) * (prefill - self.usual)


class Pace:
    """By how much the fleet is slower than its rates, from how long its prefills took."""

    def __init__(self) -> None:
        self._predicted = self._took = 1.0

    @property
    def factor(self) -> float:
        return min(max(self._took / self._predicted, 0.05), 20.0)

    def learn(self, predicted: float, took: float) -> None:
        """A prefill; what is a thousand prefills old counts a third."""
        self._predicted = 0.999 * self._predicted + predicted
        self._took = 0.999 * self._took + took


class Priced:
    """A formula that keeps, per worker, when the prefill under way began."""

    def __init__(self, seed: int, price: Price | None = None, rates: Rates | None = None) -> None:
        self.pace = Pace()
        self.price = price or BusyPrice()
        self._rates = rates or Rates()
        self._random = Random(seed)
        self._begun: dict[str, float] = {}
        self._chosen = 0.0

    def pick(self, workers: Sequence[WorkerView], prompt: Prompt, cached: Sequence[int], now: float) -> int:
        waits = [self.wait(worker, now) for worker in workers]
        prefills = [self.pace.factor * self.usual_prefill(prompt.tokens, held) for held in cached]
        weight = 1 + self.price.now(waits)
        costs = [
            wait + weight * prefill + self._rates.per_sequence * worker.sequences
            for wait, prefill, worker in zip(waits, prefills, workers, strict=True)
        ]
        chosen = lowest(costs, self._random)
        self.price.placed(waits, prefills[chosen])
        self._chosen = self.usual_prefill(prompt.tokens, cached[chosen])
        return chosen

    def usual_prefill(self, tokens: int, cached: int) -> float:
        """Seconds on an idle engine, at a pace of 1."""
        new = max(tokens - cached, 1)
        rates = self._rates
        return rates.prefill + new * (rates.per_token + rates.per_token_pair * (tokens - new / 2))

    def wait(self, worker: WorkerView, now: float) -> float:
        """Seconds until the worker has prefilled what it has been given.

        A prefill that is overdue is expected to take as long again as it is overdue.
        """
        queued = [flight.seconds for flight in worker.requests.values() if flight.prefilling]
        if not queued:
            return 0.0
        factor = self.pace.factor
        first = queued[0] * factor
        left = max(abs(first - (now - self._begun.get(worker.name, now))), _LEAST_LEFT * first)
        return sum(queued[1:]) * factor + left

    def placed(self, flight: Flight, now: float) -> None:
        flight.seconds = self._chosen
        if flight.worker.waiting == 1:
            self._begun[flight.worker.name] = now

    def first_token(self, flight: Flight, now: float) -> None:
        name = flight.worker.name
        self.pace.learn(flight.seconds, now - self._begun.get(name, now))
        self._begun[name] = now
