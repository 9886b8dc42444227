"""In-flight accounting: what each worker rank has been given and has not finished.

A reservation counts from the moment of the choice, so that a burst of siblings spreads. Its uncached prompt
tokens queue for prefill until the first token; its sequence and its context stay until the release. Prompts
are taken to be prefilled in turn: what the first of the queue has had of its time is no longer waited for.
"""

from __future__ import annotations

import msgspec

from router.failures import Failures
from router.messages import Role, WorkerKey
from router.pace import Pace

_LEAST_LEFT = 0.05
"""Share of its predicted prefill that a prompt without a first token has before it."""


class Load:
    """The sum of a rank's open reservations. Written by `LoadBook` alone."""

    __slots__ = (
        "_begun",
        "_first",
        "_queue",
        "_seconds",
        "context_tokens",
        "failures",
        "key",
        "pace",
        "queued_tokens",
        "sequences",
    )

    def __init__(self, key: WorkerKey, pace: Pace | None = None) -> None:
        self.key = key
        self.pace = pace or Pace()
        self.failures = Failures()
        self._queue: dict[int, float] = {}
        """Reservations without a first token, in the order of placement: prefill seconds at a pace of 1."""
        self._seconds = 0.0
        """Their sum."""
        self._first = 0.0
        """Of the first of them."""
        self._begun = 0.0
        """When that one's prefill began."""
        self.queued_tokens = 0
        """Uncached prompt tokens of requests without a first token."""
        self.sequences = 0
        """Requests not released."""
        self.context_tokens = 0
        """Prompt tokens of those: the KV that they keep in use, whatever the worker's block size."""

    @property
    def waiting(self) -> int:
        """Requests without a first token."""
        return len(self._queue)

    def wait(self, now: float) -> float:
        """Seconds until what is queued has been prefilled.

        A prefill that is overdue is expected to take as long again as it is overdue: whoever hangs does not
        look idle.
        """
        if not self._queue:
            return 0.0
        factor = self.pace.factor
        first = self._first * factor
        left = max(abs(first - (now - self._begun)), _LEAST_LEFT * first)
        return (self._seconds - self._first) * factor + left

    def enqueue(self, number: int, seconds: float, now: float) -> None:
        """A prompt waits, that takes `seconds` at a pace of 1."""
        self._queue[number] = seconds
        self._seconds += seconds
        if len(self._queue) == 1:
            self._first, self._begun = seconds, now

    def dequeue(self, number: int, now: float, *, prefilled: bool) -> tuple[float, float]:
        """It waits no more, because its first token came or without one.

        Answers the seconds that its prefill should have taken, and those since the one before it ended.
        """
        took = now - self._begun
        first = next(iter(self._queue)) == number
        seconds = self._queue.pop(number)
        if prefilled or first:
            self._begun = now
        self._first = next(iter(self._queue.values()), 0.0)
        self._seconds = self._seconds - seconds if self._queue else 0.0
        return seconds, took


class Reservation:
    """One placed request, until its release."""

    __slots__ = (
        "cached_tokens",
        "load",
        "overlap_tokens",
        "placed_at",
        "predicted",
        "prefilling",
        "prompt_tokens",
    )

    def __init__(
        self, load: Load, prompt_tokens: int, overlap_tokens: int, predicted: float, placed_at: float
    ) -> None:
        self.load = load
        self.prompt_tokens = prompt_tokens
        self.overlap_tokens = overlap_tokens
        self.predicted = predicted
        """Seconds from `placed_at` to the first token."""
        self.placed_at = placed_at
        self.prefilling = True
        self.cached_tokens: int | None = None
        """What the worker reported, once it has."""


class FirstTokenCounts(msgspec.Struct):
    """Predicted against observed seconds to the first token, where a prompt was prefilled."""

    observed: int = 0
    """First tokens."""
    predicted_seconds: float = 0.0
    observed_seconds: float = 0.0
    error_seconds: float = 0.0
    """Sum of the differences, whatever their signs."""

    def add(self, predicted: float, observed: float) -> None:
        self.observed += 1
        self.predicted_seconds += predicted
        self.observed_seconds += observed
        self.error_seconds += abs(predicted - observed)


class OverlapCounts(msgspec.Struct):
    """Predicted against reported cached tokens, over the requests whose worker reported."""

    reported: int = 0
    exact: int = 0
    over: int = 0
    """Requests with fewer cached tokens than predicted."""
    under: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0

    def add(self, predicted: int, reported: int) -> None:
        self.reported += 1
        self.exact += predicted == reported
        self.over += predicted > reported
        self.under += predicted < reported
        self.predicted_tokens += predicted
        self.reported_tokens += reported


class LoadBook:
    """All open reservations. A rank's load outlives its removal for as long as requests are open on it."""

    def __init__(self, *, learns: bool = False) -> None:
        """`learns` where times are those of a clock that runs."""
        self._learns = learns
        self._loads: dict[WorkerKey, Load] = {}
        self._paces: dict[tuple[str, Role], Pace] = {}
        """By pool and role."""
        self._leaving: set[WorkerKey] = set()
        """Ranks that are gone and still have open requests."""
        self._open: dict[int, Reservation] = {}
        self._next = 1
        self.ignored = 0
        """First tokens and releases of reservations that were not open (released already, or never made)."""
        self.overlap = OverlapCounts()
        self.first_tokens = FirstTokenCounts()

    @property
    def open_reservations(self) -> int:
        return len(self._open)

    def load_of(self, key: WorkerKey, pool: str = "", role: Role = "aggregated") -> Load:
        """The rank's load, the same object while the rank is known or busy."""
        load = self._loads.get(key)
        if load is None:
            pace = self._paces.setdefault((pool, role), Pace())
            load = self._loads[key] = Load(key, Pace(pace))
        self._leaving.discard(key)
        return load

    def drop(self, key: WorkerKey) -> None:
        """A rank that `load_of` was asked for is gone; its load goes with the last open request."""
        self._leaving.add(key)
        self._forget_idle(key)

    def reserve(
        self,
        load: Load,
        prompt_tokens: int,
        overlap_tokens: int,
        *,
        seconds: float = 0.0,
        predicted: float = 0.0,
        now: float = 0.0,
    ) -> int:
        """Count a request that has just been placed; answers the reservation's number.

        Its prefill takes `seconds` at a pace of 1, its first token is expected in `predicted` seconds.
        """
        number = self._next
        self._next += 1
        self._open[number] = Reservation(load, prompt_tokens, overlap_tokens, predicted, now)
        load.queued_tokens += prompt_tokens - overlap_tokens
        load.enqueue(number, seconds, now)
        load.sequences += 1
        load.context_tokens += prompt_tokens
        return number

    def first_token(self, number: int, cached_tokens: int | None, now: float = 0.0) -> None:
        """The prefill is over."""
        reservation = self._open.get(number)
        if reservation is None:
            self.ignored += 1
            return
        self._end_prefill(number, reservation, now, prefilled=True)
        self._report(reservation, cached_tokens)

    def release(
        self, number: int, cached_tokens: int | None, now: float = 0.0, *, failed: bool = False
    ) -> int | None:
        """The request is over. A second release is counted and changes nothing.

        With `failed` the rank is to blame. Answers the cached tokens that the worker reported, now or at the
        first token.
        """
        reservation = self._open.pop(number, None)
        if reservation is None:
            self.ignored += 1
            return None
        self._end_prefill(number, reservation, now, prefilled=False)
        self._report(reservation, cached_tokens)
        if failed:
            reservation.load.failures.failed(now)
        reservation.load.sequences -= 1
        reservation.load.context_tokens -= reservation.prompt_tokens
        self._forget_idle(reservation.load.key)
        return reservation.cached_tokens

    def _forget_idle(self, key: WorkerKey) -> None:
        if key in self._leaving and not self._loads[key].sequences:
            self._leaving.discard(key)
            del self._loads[key]

    def _end_prefill(self, number: int, reservation: Reservation, now: float, *, prefilled: bool) -> None:
        if not reservation.prefilling:
            return
        reservation.prefilling = False
        load = reservation.load
        load.queued_tokens -= reservation.prompt_tokens - reservation.overlap_tokens
        seconds, took = load.dequeue(number, now, prefilled=prefilled)
        if prefilled:
            load.failures.succeeded()
            if self._learns and seconds:
                load.pace.learn(seconds, took)
                self.first_tokens.add(reservation.predicted, now - reservation.placed_at)

    def _report(self, reservation: Reservation, cached_tokens: int | None) -> None:
        if cached_tokens is not None and reservation.cached_tokens is None:
            cached = min(max(cached_tokens, 0), reservation.prompt_tokens)  # a worker may say anything
            reservation.cached_tokens = cached
            self.overlap.add(reservation.overlap_tokens, cached)
