"""The router's cost with another price on congestion, one that goes by waits: what it was chosen against.

    cost = wait + (1 + price) x prefill + a little for each sequence that decodes        (seconds)
    price = GAIN x max(0, median wait of the fleet / usual prefill of a request - FREE)

The router's own price goes by the share of busy workers, which needs no rates and does not take a burst for
an overload.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median

import msgspec

from loadtests.fleet.view import Flight, Prompt, WorkerView, lowest


class PriceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, for an engine that nobody has measured: a factor learned from first tokens corrects them."""

    prefill_base: float = 0.012
    prefill_per_token: float = 1 / 20_000
    prefill_per_token_context: float = 1 / 20_000 / 60_000
    decode_per_sequence: float = 0.002
    gain: float = 10.0
    free: float = 1.0
    """Usual prefills that may wait without a price."""
    most: float = 100.0
    """Highest price."""
    forget: float = 0.01
    """Weight of the latest request in the usual prefill."""


class WaitPrice:
    """A formula that keeps, per worker, when the prefill under way began."""

    def __init__(self, seed: int, spec: PriceSpec | None = None) -> None:
        self._spec = spec or PriceSpec()
        self._random = Random(seed)
        self._begun: dict[str, float] = {}
        self._usual = 0.0
        """Moving mean of the prefill seconds of a request; 0 before the first."""
        self._pace = Pace()
        self._chosen = 0.0

    def pick(self, workers: Sequence[WorkerView], prompt: Prompt, cached: Sequence[int], now: float) -> int:
        spec, factor = self._spec, self._pace.factor
        waits = [factor * self.wait(worker, now) for worker in workers]
        prefills = [factor * self.prefill(prompt.tokens, held) for held in cached]
        price = self.price(waits)
        costs = [
            wait + (1 + price) * prefill + spec.decode_per_sequence * worker.sequences
            for wait, prefill, worker in zip(waits, prefills, workers, strict=True)
        ]
        chosen = lowest(costs, self._random)
        self._usual += (spec.forget if self._usual else 1.0) * (prefills[chosen] - self._usual)
        self._chosen = prefills[chosen] / factor
        return chosen

    def price(self, waits: Sequence[float]) -> float:
        """Of a second of prefill beyond itself."""
        if not self._usual:
            return 0.0
        spec = self._spec
        return min(spec.gain * max(0.0, median(waits) / self._usual - spec.free), spec.most)

    def prefill(self, tokens: int, cached: int) -> float:
        """Seconds on an idle engine, before the learned factor."""
        new = max(tokens - cached, 1)
        spec = self._spec
        context = tokens - new / 2
        return spec.prefill_base + new * (spec.prefill_per_token + spec.prefill_per_token_context * context)

    def wait(self, worker: WorkerView, now: float) -> float:
        """Seconds until the worker has prefilled what it has been given, before the learned factor."""
        queued = [flight.seconds for flight in worker.requests.values() if flight.prefilling]
        if not queued:
            return 0.0
        done = (now - self._begun.get(worker.name, now)) / self._pace.factor
        return sum(queued) - min(done, 0.95 * queued[0])

    def placed(self, flight: Flight, now: float) -> None:
        flight.seconds = self._chosen
        if flight.worker.waiting == 1:
            self._begun[flight.worker.name] = now

    def first_token(self, flight: Flight, now: float) -> None:
        name = flight.worker.name
        self._pace.add(flight.seconds, now - self._begun.get(name, now))
        self._begun[name] = now


class Pace:
    """By how much the fleet is slower than the spec, from how long its prefills took."""

    def __init__(self) -> None:
        self._predicted = self._took = 1.0

    @property
    def factor(self) -> float:
        return min(max(self._took / self._predicted, 0.05), 20.0)

    def add(self, predicted: float, took: float) -> None:
        """A prefill; what is a thousand prefills old counts a third."""
        self._predicted = 0.999 * self._predicted + predicted
        self._took = 0.999 * self._took + took
