"""In-flight accounting: what each worker rank has been given and has not finished.

A reservation counts from the moment of the choice, so that a burst of siblings spreads. Its uncached prompt
tokens queue for prefill until the first token; its sequence and its context stay until the release.
"""

from __future__ import annotations

import msgspec

from router.messages import WorkerKey


class Load:
    """The sum of a rank's open reservations. Written by `LoadBook` alone."""

    __slots__ = ("context_tokens", "key", "queued_tokens", "sequences", "waiting")

    def __init__(self, key: WorkerKey) -> None:
        self.key = key
        self.queued_tokens = 0
        """Uncached prompt tokens of requests without a first token."""
        self.waiting = 0
        """Requests without a first token."""
        self.sequences = 0
        """Requests not released."""
        self.context_tokens = 0
        """Prompt tokens of those: the KV that they keep in use, whatever the worker's block size."""


class Reservation:
    """One placed request, until its release."""

    __slots__ = ("cached_tokens", "load", "overlap_tokens", "prefilling", "prompt_tokens")

    def __init__(self, load: Load, prompt_tokens: int, overlap_tokens: int) -> None:
        self.load = load
        self.prompt_tokens = prompt_tokens
        self.overlap_tokens = overlap_tokens
        self.prefilling = True
        self.cached_tokens: int | None = None
        """What the worker reported, once it has."""


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

    def __init__(self) -> None:
        self._loads: dict[WorkerKey, Load] = {}
        self._leaving: set[WorkerKey] = set()
        """Ranks that are gone and still have open requests."""
        self._open: dict[int, Reservation] = {}
        self._next = 1
        self.ignored = 0
        """First tokens and releases of reservations that were not open (released already, or never made)."""
        self.overlap = OverlapCounts()

    @property
    def open_reservations(self) -> int:
        return len(self._open)

    def load_of(self, key: WorkerKey) -> Load:
        """The rank's load, the same object while the rank is known or busy."""
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = Load(key)
        self._leaving.discard(key)
        return load

    def drop(self, key: WorkerKey) -> None:
        """A rank that `load_of` was asked for is gone; its load goes with the last open request."""
        self._leaving.add(key)
        self._forget_idle(key)

    def reserve(self, load: Load, prompt_tokens: int, overlap_tokens: int) -> int:
        """Count a request that has just been placed; answers the reservation's number."""
        number = self._next
        self._next += 1
        self._open[number] = Reservation(load, prompt_tokens, overlap_tokens)
        load.queued_tokens += prompt_tokens - overlap_tokens
        load.waiting += 1
        load.sequences += 1
        load.context_tokens += prompt_tokens
        return number

    def first_token(self, number: int, cached_tokens: int | None) -> None:
        """The prefill is over."""
        reservation = self._open.get(number)
        if reservation is None:
            self.ignored += 1
            return
        self._end_prefill(reservation)
        self._report(reservation, cached_tokens)

    def release(self, number: int, cached_tokens: int | None) -> int | None:
        """The request is over. A second release is counted and changes nothing.

        Answers the cached tokens that the worker reported, now or at the first token.
        """
        reservation = self._open.pop(number, None)
        if reservation is None:
            self.ignored += 1
            return None
        self._end_prefill(reservation)
        self._report(reservation, cached_tokens)
        reservation.load.sequences -= 1
        reservation.load.context_tokens -= reservation.prompt_tokens
        self._forget_idle(reservation.load.key)
        return reservation.cached_tokens

    def _forget_idle(self, key: WorkerKey) -> None:
        if key in self._leaving and not self._loads[key].sequences:
            self._leaving.discard(key)
            del self._loads[key]

    def _end_prefill(self, reservation: Reservation) -> None:
        if reservation.prefilling:
            reservation.prefilling = False
            reservation.load.waiting -= 1
            reservation.load.queued_tokens -= reservation.prompt_tokens - reservation.overlap_tokens

    def _report(self, reservation: Reservation, cached_tokens: int | None) -> None:
        if cached_tokens is not None and reservation.cached_tokens is None:
            reservation.cached_tokens = cached_tokens
            self.overlap.add(reservation.overlap_tokens, cached_tokens)
