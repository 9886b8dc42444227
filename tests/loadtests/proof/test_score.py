"""Counting predictions, and explaining those that were wrong."""

from __future__ import annotations

from loadtests.proof.mix import Ask
from loadtests.proof.score import Outcome, by_kind, explain, table


def outcome(
    predicted: int, reported: int, attention: int | None = 64, at: float = 0.0, **fields: object
) -> Outcome:
    ask = Ask(str(fields.pop("kind", "shared")), list(range(100)), 9, 4)
    known = {"ask": ask, "worker": "one", "started": at, "ended": at + 0.5, **fields}
    return Outcome(predicted=predicted, reported=reported, attention=attention, **known)  # type: ignore[arg-type]


def test_counts() -> None:
    counts = table([outcome(64, 64), outcome(32, 32), outcome(32, 0, 0), outcome(0, 0, None)])
    assert (counts.requests, counts.exact, counts.hits) == (4, 3, 2)
    assert (counts.scored, counts.attention_exact, counts.attention_over) == (3, 2, 1)


def test_by_kind() -> None:
    counts = by_kind([outcome(1, 1), outcome(1, 1), outcome(1, 0, kind="old")])
    assert {kind: (each.requests, each.exact) for kind, each in counts.items()} == {
        "shared": (2, 2),
        "old": (1, 0),
    }


def test_a_restart_explains_what_falls_into_it() -> None:
    miss = outcome(64, 0, at=10.0)
    assert "restarted" in explain(miss, [miss], {"one": [(10.2, 40.0)]})
    assert "restarted" in explain(miss, [miss], {"one": [(2.0, 10.1)]})
    assert not explain(miss, [miss], {"one": [(2.0, 9.0)]})
    assert not explain(miss, [miss], {"two": [(10.2, 40.0)]})


def test_a_request_under_way_explains_more_than_was_predicted() -> None:
    miss = outcome(0, 64, at=10.0)
    assert "computed it" in explain(miss, [miss, outcome(0, 0, at=9.8)], {})
    assert not explain(miss, [miss], {})
    assert not explain(miss, [miss, outcome(0, 0, at=9.8, worker="two")], {})
    assert not explain(miss, [miss, outcome(0, 0, at=2.0)], {})
    stranger = Ask("fresh", [7] * 100, 9, 1)
    assert not explain(miss, [miss, outcome(0, 0, at=9.8, ask=stranger)], {})


def test_others_explain_less_than_was_predicted() -> None:
    miss = outcome(64, 0, at=10.0)
    assert "others" in explain(miss, [miss, outcome(0, 0, at=9.8)], {})
    assert not explain(miss, [miss], {})
