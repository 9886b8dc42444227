"""One choice's events as a whole answer, for a response that is not streamed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from parsers.base import (
    ContentDelta,
    Finish,
    OutputEvent,
    OutputParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    """JSON text; what the model wrote, should that be no JSON."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    reasoning: str
    content: str
    tool_calls: list[ToolCall]
    finish_reason: str
    stop: str | int | None = None
    """What stopped it, as `Finish.stop`."""


class AnswerBuilder:
    """Collects events, then leaves out what the parser says is not part of the answer."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._starts: list[ToolCallStart] = []
        self._arguments: list[list[str]] = []
        self._end = Finish("")

    def add(self, events: Iterable[OutputEvent]) -> None:
        for event in events:
            match event:
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ContentDelta(text):
                    self._content.append(text)
                case ToolCallStart():
                    self._starts.append(event)
                    self._arguments.append([])
                case ToolArgumentsDelta(index, text):
                    self._arguments[index].append(text)
                case Finish():
                    self._end = event

    def build(self, parser: OutputParser) -> Answer:
        """The answer, after `parser.finish` gave its events."""
        return Answer(
            reasoning="" if parser.reasoning_retracted else "".join(self._reasoning),
            content="".join(self._content),
            tool_calls=[
                ToolCall(start.id, start.name, "".join(arguments))
                for start, arguments in zip(self._starts, self._arguments, strict=True)
                if start.index not in parser.incomplete_calls
            ],
            finish_reason=self._end.reason,
            stop=self._end.stop,
        )
