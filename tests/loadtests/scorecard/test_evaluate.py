"""Fabricated samples: what an entry says of them."""

from __future__ import annotations

import msgspec
import pytest

from loadtests.scorecard.entries import ENTRIES, OURS, Entry
from loadtests.scorecard.evaluate import (
    ALL_HOLD,
    NOT_MEASURED,
    SOME_DO_NOT,
    Outcome,
    Sample,
    evaluate,
    exit_code,
)

PEER_FIGURE = 100.0


def outcome(*figures: float) -> Outcome:
    """Samples in which every quantity has the given figure."""
    return Outcome([Sample(*[figure] * len(msgspec.structs.fields(Sample))) for figure in figures])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
class TestEachEntry:
    def test_holds_up_to_its_target(self, entry: Entry) -> None:
        at_target = outcome(PEER_FIGURE * entry.target)
        measurement = evaluate(entry, {entry.server: at_target, entry.peer: outcome(PEER_FIGURE)})
        assert measurement.holds is True
        assert measurement.value == pytest.approx(entry.target)

    def test_turns_false_when_ours_costs_more(self, entry: Entry) -> None:
        worse = outcome(PEER_FIGURE * entry.target * 1.01)
        measurement = evaluate(entry, {entry.server: worse, entry.peer: outcome(PEER_FIGURE)})
        assert measurement.holds is False
        assert measurement.value is not None
        assert measurement.value > entry.target

    def test_an_absent_peer_gives_null_and_says_why(self, entry: Entry) -> None:
        gone = Outcome(absent="not installed")
        measurement = evaluate(entry, {entry.server: outcome(1.0), entry.peer: gone})
        assert (measurement.value, measurement.holds) == (None, None)
        assert measurement.how == f"{entry.peer}: not installed"

    def test_the_gateway_absent_gives_null(self, entry: Entry) -> None:
        measurement = evaluate(entry, {entry.peer: outcome(PEER_FIGURE)})
        assert measurement.holds is None
        assert OURS in measurement.how

    def test_a_peer_that_measures_as_nothing_gives_null(self, entry: Entry) -> None:
        measurement = evaluate(entry, {entry.server: outcome(1.0), entry.peer: outcome(0.0)})
        assert (measurement.value, measurement.holds) == (None, None)


def test_the_median_decides_not_the_worst_repetition() -> None:
    entry = ENTRIES[0]
    ours = outcome(10.0, 10.0, 10_000.0)
    measurement = evaluate(entry, {OURS: ours, entry.peer: outcome(20.0, 20.0, 20.0)})
    assert measurement.value == pytest.approx(0.5)
    assert "medians of 3" in measurement.how


def test_each_entry_reads_the_quantity_it_names() -> None:
    names = [field.name for field in msgspec.structs.fields(Sample)]
    for entry in ENTRIES:
        ours = Outcome([Sample(**{name: 30.0 if name == entry.quantity else 1.0 for name in names})])
        theirs = Outcome([Sample(**{name: 60.0 if name == entry.quantity else 1.0 for name in names})])
        assert evaluate(entry, {entry.server: ours, entry.peer: theirs}).value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("holds", "code"),
    [
        ((True, True), ALL_HOLD),
        ((True, False), SOME_DO_NOT),
        ((True, None), NOT_MEASURED),
        ((False, None), NOT_MEASURED),
    ],
)
def test_exit_code(holds: tuple[bool | None, ...], code: int) -> None:
    one = evaluate(ENTRIES[0], {OURS: outcome(1.0), ENTRIES[0].peer: outcome(100.0)})
    assert exit_code([msgspec.structs.replace(one, holds=value) for value in holds]) == code


def test_names_are_unique() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
