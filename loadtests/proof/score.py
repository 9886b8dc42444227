"""Predicted against reported cached tokens, and why they differ where they do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loadtests.proof.mix import Ask

_SETTLING = 0.1
"""Seconds in which what an engine did is told, on a machine whose cores are all busy."""


class Outcome(msgspec.Struct):
    """One request that was answered."""

    ask: Ask
    worker: str
    predicted: int
    """Cached tokens, when the worker was chosen."""
    reported: int
    """The same by the engine."""
    attention: int | None
    """What attention alone promised on that worker just before; None when it was not asked or not known."""
    started: float
    ended: float
    rule: str = ""

    @property
    def exact(self) -> bool:
        return self.predicted == self.reported


class Table(msgspec.Struct, frozen=True):
    """Counts of one run."""

    requests: int
    exact: int
    hits: int
    """Requests of which the engine had something cached."""
    scored: int
    """Requests of which the attention-only prediction is known."""
    attention_exact: int
    attention_over: int
    """Where attention alone promises more than the engine reports."""


def table(outcomes: Sequence[Outcome]) -> Table:
    scored = [each for each in outcomes if each.attention is not None]
    return Table(
        requests=len(outcomes),
        exact=sum(each.exact for each in outcomes),
        hits=sum(each.reported > 0 for each in outcomes),
        scored=len(scored),
        attention_exact=sum(each.attention == each.reported for each in scored),
        attention_over=sum((each.attention or 0) > each.reported for each in scored),
    )


def by_kind(outcomes: Sequence[Outcome]) -> Mapping[str, Table]:
    kinds = sorted({each.ask.kind for each in outcomes})
    return {kind: table([each for each in outcomes if each.ask.kind == kind]) for kind in kinds}


def explain(
    miss: Outcome, outcomes: Sequence[Outcome], down: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """What happened between the choice and the prefill; empty when nothing that is known explains it.

    `down` is, by worker, from when to when it was not there.
    """
    if any(
        start - _SETTLING <= miss.ended and miss.started <= end for start, end in down.get(miss.worker, ())
    ):
        return "the worker was restarted"
    beside = [
        each
        for each in outcomes
        if each is not miss
        and each.worker == miss.worker
        and each.started < miss.ended
        and each.ended > miss.started - _SETTLING
    ]
    if miss.reported > miss.predicted:
        if any(shared(miss.ask, each.ask) >= miss.reported for each in beside):
            return "a request under way computed it"
        return ""
    return "others took its place in the cache" if beside else ""


def shared(one: Ask, other: Ask) -> int:
    """Tokens that two requests begin with alike, the answers included."""
    if one.salt != other.salt:
        return 0
    count = 0
    for mine, theirs in zip(one.told, other.told, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
