"""Stop strings over generated text, whatever steps it comes in."""

from __future__ import annotations

from collections.abc import Sequence

from parsers.base import ContentDelta, OutputEvent, ReasoningDelta


class StopMatcher:
    """Cuts text at the stop string that completes earliest; holds back what may still become one.

    Reasoning and content are separate texts: a stop string never matches across them, nor inside a tool call.
    While `armed` is false nothing matches; a stop string may begin in such text and end later.
    """

    __slots__ = ("_held", "_include", "_kind", "_longest", "_stops", "armed", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops)) - 1
        self._include = include
        self.armed = True
        self._held = ""
        self._kind: type[ReasoningDelta] | type[ContentDelta] = ContentDelta
        self.matched: str | None = None

    def filter(self, events: Sequence[OutputEvent]) -> list[OutputEvent]:
        """What may go out of `events`; nothing after a match."""
        out: list[OutputEvent] = []
        for event in events:
            if self.matched is not None:
                break
            if isinstance(event, (ReasoningDelta, ContentDelta)):
                self._text(event, out)
            else:
                out += self.flush()
                out.append(event)
        return out

    def flush(self) -> list[OutputEvent]:
        """What was held back, at the end of a text."""
        held, self._held = self._held, ""
        return [self._kind(held)] if held else []

    def _text(self, event: ReasoningDelta | ContentDelta, out: list[OutputEvent]) -> None:
        if type(event) is not self._kind:
            out += self.flush()
            self._kind = type(event)
        old = len(self._held)
        text = self._held + event.text
        self._held = ""
        match = self._earliest(text, old) if self.armed else None
        if match is not None:
            end, start, self.matched = match
            text = text[: end if self._include else start]
        else:
            keep = len(text) - self._pending(text)
            text, self._held = text[:keep], text[keep:]
        if text:
            out.append(self._kind(text))

    def _earliest(self, text: str, old: int) -> tuple[int, int, str] | None:
        """(end, start, stop string) of the match that ends first, past the `old` characters."""
        found = ((text.find(stop, max(0, old - len(stop) + 1)), stop) for stop in self._stops)
        return min(((at + len(stop), at, stop) for at, stop in found if at >= 0), default=None)

    def _pending(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        for size in range(min(self._longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
