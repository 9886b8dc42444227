"""A model with no reasoning or tool markup: whatever it says is content."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parsers.base import ContentDelta, Detokenizer, Finish, OutputEvent


class PlainParser:
    """Implements `parsers.base.OutputParser`; also what a completion without a chat uses."""

    reasoning_tokens = 0
    reasoning_retracted = False
    incomplete_calls: Collection[int] = ()

    def __init__(self, detokenizer: Detokenizer, stop_token_ids: Collection[int] = ()) -> None:
        """`stop_token_ids` end the text and are not part of it."""
        self._detokenizer = detokenizer
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stopped = False

    def feed(self, token_ids: Sequence[int]) -> list[OutputEvent]:
        push = self._detokenizer.push
        pieces = []
        for token_id in token_ids:
            if self._stopped or token_id in self._stop_token_ids:
                self._stopped = True
                break
            pieces.append(push(token_id))
        return self.feed_text("".join(pieces))

    def feed_text(self, text: str) -> list[OutputEvent]:
        return [ContentDelta(text)] if text else []

    def finish(self, engine_reason: str) -> list[OutputEvent]:
        return [*self.feed_text(self._detokenizer.flush()), Finish(engine_reason)]
