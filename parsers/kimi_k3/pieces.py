"""Events of single pieces of text, made once: a vocabulary has few of them, and an answer many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as quoted

from parsers.base import ContentDelta, OutputEvent, ReasoningDelta, ToolArgumentsDelta

_LIMIT = 32_768
"""Texts that are remembered of each kind, at about 100 bytes each."""

EventsOf = Callable[[str], Sequence[OutputEvent]]


class _Pieces(dict[str, tuple[OutputEvent]]):
    def __init__(self, make: Callable[[str], OutputEvent]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, text: str) -> tuple[OutputEvent]:
        events = (self._make(text),)
        if len(self) < _LIMIT:
            self[text] = events
        return events


reasoning_of: EventsOf = _Pieces(ReasoningDelta).__getitem__
content_of: EventsOf = _Pieces(ContentDelta).__getitem__


@lru_cache(maxsize=8)
def string_pieces_of(call: int) -> EventsOf:
    """Pieces inside a string argument of the call with that index."""
    return _Pieces(lambda text: ToolArgumentsDelta(call, quoted(text)[1:-1])).__getitem__
