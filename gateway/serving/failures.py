"""What is done about a worker's failure: one table, by where the request was and what went wrong.

No row leads back to a worker that has shown that it cannot; `Trail` keeps who that is, and how often a
request may fail before its client is told.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gateway.engines.base import EngineError

MAX_FAILURES = 3
"""Legs of a request, or of one continuation of it, that may fail before the client gets the error."""


class Stage(Enum):
    """How far a request was."""

    PREFILL = "prefill"
    BETWEEN = "between the legs"
    DECODE = "decode, before any output"
    WHOLE = "a worker that does both, before any output"
    STREAM = "after the first output"


class Cause(Enum):
    """What went wrong."""

    REFUSED = "the request is at fault, says the worker"
    BUSY = "the worker takes no more now"
    LOST = "no connection, or it broke: the worker may be dead"
    FAILED = "the worker says that it failed, or gave what cannot be used"
    STALE = "the KV handle is too old"
    FINAL = "another worker would fail likewise"


class Leg(Enum):
    PREFILL = "prefill"
    ANSWER = "answer"
    """Decode, or the only leg."""


class Remedy(NamedTuple):
    """What comes next."""

    again: bool = True
    """Another attempt; else the client gets the error."""
    excluded: frozenset[Leg] = frozenset()
    """Whose workers are not asked again."""
    avoided: frozenset[Leg] = frozenset()
    """Whose workers are asked again only where there is no other."""


TELL = Remedy(again=False)
ANEW = Remedy()
_OTHER_PREFILL = Remedy(excluded=frozenset({Leg.PREFILL}))
_OTHER_ANSWER = Remedy(excluded=frozenset({Leg.ANSWER}))
_OTHER_PAIR = Remedy(avoided=frozenset(Leg))

TABLE: dict[tuple[Stage, Cause], Remedy] = {
    (Stage.PREFILL, Cause.BUSY): _OTHER_PREFILL,
    (Stage.PREFILL, Cause.LOST): _OTHER_PREFILL,
    (Stage.PREFILL, Cause.FAILED): _OTHER_PREFILL,
    # The blocks are still in the prefill worker's cache: it is the cheapest again.
    (Stage.BETWEEN, Cause.STALE): ANEW,
    (Stage.DECODE, Cause.BUSY): _OTHER_ANSWER,
    # A handle that may have been read is never used again: prefill runs anew, from the cache.
    (Stage.DECODE, Cause.LOST): _OTHER_ANSWER,
    # A decode worker that lives and says so could not read the KV cache: the prefill worker may have died.
    (Stage.DECODE, Cause.FAILED): _OTHER_PAIR,
    (Stage.WHOLE, Cause.BUSY): _OTHER_ANSWER,
    (Stage.WHOLE, Cause.LOST): _OTHER_ANSWER,
    (Stage.WHOLE, Cause.FAILED): _OTHER_ANSWER,
    (Stage.STREAM, Cause.LOST): _OTHER_ANSWER,
    (Stage.STREAM, Cause.FAILED): _OTHER_ANSWER,
}
"""Whatever is not here is told to the client."""


def cause_of(error: EngineError) -> Cause:
    if error.status in (429, 503):
        return Cause.BUSY
    if error.lost:
        return Cause.LOST
    if error.retryable:
        return Cause.FAILED
    return Cause.REFUSED if error.status is not None and error.status < 500 else Cause.FINAL


class Trail:
    """What has gone wrong with one request so far."""

    def __init__(self) -> None:
        self.excluded: frozenset[str] = frozenset()
        self.avoided: frozenset[str] = frozenset()
        """Only where there is no other."""
        self.failure: EngineError | None = None
        self._left = MAX_FAILURES

    def add(
        self, stage: Stage, cause: Cause, error: EngineError, workers: dict[Leg, str], *, again: bool = True
    ) -> None:
        """Note a failure of an attempt on these workers. Raises it when the client is to be told.

        Without `again` that is now, whatever the table says.
        """
        remedy = TABLE.get((stage, cause), TELL)
        self.failure = error
        self._left -= 1
        error.attempts = MAX_FAILURES - self._left
        if not (again and remedy.again and self._left):
            raise error
        self.excluded |= {workers[leg] for leg in remedy.excluded}
        self.avoided |= {workers[leg] for leg in remedy.avoided}
