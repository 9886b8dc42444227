"""Samples to measurements. Pure: no processes, clocks or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from loadtests.scorecard.entries import Entry


class Sample(msgspec.Struct, frozen=True):
    """What one run of one phase on one server gave."""

    cpu_us_per_request: float
    """Of the server's process tree, by the processes' CPU clocks."""
    cpu_us_per_token: float
    first_token_us: float
    """Median over the run's streams of request sent to first byte of the answer's body."""


class Outcome(msgspec.Struct, frozen=True):
    """All that was measured of one server in one phase; `absent` says why there are no samples."""

    samples: Sequence[Sample] = ()
    absent: str | None = None


class Measurement(msgspec.Struct, frozen=True):
    """One line of the scorecard. `holds` is None when it could not be measured, and `how` says why."""

    name: str
    value: float | None
    unit: str
    target: float
    holds: bool | None
    peer: str
    how: str


UNIT = "ratio to peer"
_LABELS = {
    "cpu_us_per_token": "CPU us per streamed token",
    "cpu_us_per_request": "CPU us per request",
    "first_token_us": "us to the first token",
}
_NOTHING = Outcome(absent="not measured")


def evaluate(entry: Entry, outcomes: Mapping[str, Outcome]) -> Measurement:
    """`outcomes` of the entry's phase by server name."""
    ours, theirs = outcomes.get(entry.server, _NOTHING), outcomes.get(entry.peer, _NOTHING)
    absences = [
        f"{server}: {outcome.absent or 'no samples'}"
        for server, outcome in ((entry.server, ours), (entry.peer, theirs))
        if outcome.absent or not outcome.samples
    ]
    if absences:
        return _measurement(entry, None, "; ".join(absences))
    mine, peers = _median(ours, entry.quantity), _median(theirs, entry.quantity)
    if peers <= 0:
        return _measurement(entry, None, f"{entry.peer}: {entry.quantity} measured as {peers}")
    figures = f"{entry.server} {mine:.1f}, {entry.peer} {peers:.1f}"
    how = (
        f"{_LABELS[entry.quantity]}, {entry.phase.what}: {figures}; "
        f"medians of {len(ours.samples)} interleaved repetitions"
    )
    return _measurement(entry, mine / peers, how)


def _measurement(entry: Entry, ratio: float | None, how: str) -> Measurement:
    return Measurement(
        name=entry.name,
        value=None if ratio is None else round(ratio, 3),
        unit=UNIT,
        target=entry.target,
        holds=None if ratio is None else ratio <= entry.target,
        peer=entry.peer,
        how=how,
    )


def _median(outcome: Outcome, quantity: str) -> float:
    return float(median(getattr(sample, quantity) for sample in outcome.samples))


ALL_HOLD, SOME_DO_NOT, NOT_MEASURED = 0, 1, 3


def exit_code(measurements: Sequence[Measurement]) -> int:
    """What was not measured outweighs what does not hold: the run says nothing about it."""
    if any(m.holds is None for m in measurements):
        return NOT_MEASURED
    return ALL_HOLD if all(m.holds for m in measurements) else SOME_DO_NOT
