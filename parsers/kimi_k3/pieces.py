"""Answers for single ordinary tokens, which is how most tokens come.

In a state that shows text, what a token gives depends on the token alone: its events are made once for a
vocabulary and shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json.encoder import encode_basestring as quoted

from parsers.base import ContentDelta, Detokenizer, OutputEvent, ReasoningDelta, ToolArgumentsDelta
from parsers.kimi_k3.markers import FIRST_CONTROL_ID

_LIMIT = 32_768
"""Tokens that are remembered of each kind, at about 150 bytes each."""
_MAX_CALLS = 4
"""Calls of an answer whose pieces are remembered."""

Texts = Sequence[str | None]
Events = Sequence[OutputEvent]


class Known(dict[int, Events | None]):
    """The events of one token in a state; None for a token that must be looked at.

    That is a control token, an unknown one, and one that is no whole characters.
    """

    def __missing__(self, token_id: int) -> Events | None:
        return None


class _Shown(Known):
    """Where text is shown as it comes."""

    def __init__(self, texts: Texts, make: Callable[[str], OutputEvent]) -> None:
        super().__init__()
        self._texts = texts
        self._make = make

    def __missing__(self, token_id: int) -> Events | None:
        text = whole_text(self._texts, token_id)
        if not text:
            return None
        events = (self._make(text),)
        if len(self) < _LIMIT:
            self[token_id] = events
        return events


UNKNOWN = Known()
"""Where every token must be looked at."""


def whole_text(texts: Texts, token_id: int) -> str | None:
    """Text of an ordinary token that is whole characters."""
    return texts[token_id] if 0 <= token_id < FIRST_CONTROL_ID and token_id < len(texts) else None


def reasoning_of(detokenizer: Detokenizer) -> Known:
    return _shared(detokenizer, "reasoning", ReasoningDelta)


def content_of(detokenizer: Detokenizer) -> Known:
    return _shared(detokenizer, "content", ContentDelta)


def string_pieces_of(detokenizer: Detokenizer, call: int) -> Known:
    """Inside a string argument of the call with that index."""

    def make(text: str) -> OutputEvent:
        return ToolArgumentsDelta(call, quoted(text)[1:-1])

    if call >= _MAX_CALLS:
        return _Shown(detokenizer.texts, make)
    return _shared(detokenizer, f"string {call}", make)


def _shared(detokenizer: Detokenizer, kind: str, make: Callable[[str], OutputEvent]) -> Known:
    known = detokenizer.memo.get(kind)
    if known is None:
        known = detokenizer.memo[kind] = _Shown(detokenizer.texts, make)
    shown: Known = known
    return shown
