"""One choice of a chat answer: ids through the format's own parser, in the pieces that vLLM sends."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence

import msgspec

from parsers.answer import Answer, AnswerBuilder
from parsers.base import (
    ContentDelta,
    OutputEvent,
    OutputOptions,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from simulator.generation import Step
from simulator.tokens import StopHold, TextStream, Tokens


class Call(msgspec.Struct, kw_only=True):
    """A tool call that is being written."""

    index: int
    name: str
    arguments: str = ""

    @property
    def whole(self) -> bool:
        """Whether the arguments are complete: of a JSON object only the whole is JSON."""
        if not self.arguments.endswith("}"):
            return False
        try:
            json.loads(self.arguments)
        except ValueError:
            return False
        return True


class Delta(msgspec.Struct, kw_only=True):
    """What one step adds to the message."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = []

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class ChatChoice:
    """One choice, streamed step by step or read at once."""

    def __init__(
        self, tokens: Tokens, text: TextStream, options: OutputOptions, stop: Sequence[str] = ()
    ) -> None:
        """`text` does not look for stop strings: a parser must have the text of each token at once."""
        self._parser = tokens.model_format.parser(options, text)
        self._stop = stop
        self._holds: dict[type[ReasoningDelta | ContentDelta], StopHold] = {}
        self._marked_up = tokens.marked_up
        self._open: Call | None = None
        self.called = False
        """Whether a tool call has come out."""

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens of reasoning so far; None where the format has none."""
        return self._parser.reasoning_tokens if self._marked_up else None

    def push(self, step: Step) -> Delta:
        """What a step adds. Tool calls come out whole; one that is never complete does not come out."""
        delta = Delta(calls=[])
        for event in self._events(step):
            match event:
                case ReasoningDelta(text):
                    delta.reasoning += text
                case ContentDelta(text):
                    delta.content += text
                case ToolCallStart(index, _, name):
                    self._open = Call(index=index, name=name)
                case ToolArgumentsDelta(_, text) if self._open is not None:
                    self._open.arguments += text
            if self._open is not None and self._open.whole:
                delta.calls.append(self._open)
                self._open, self.called = None, True
        return delta

    def whole(self, step: Step) -> Answer:
        """The message of a whole output."""
        builder = AnswerBuilder()
        builder.add(self._events(step))
        answer = builder.build(self._parser)
        self.called = bool(answer.tool_calls)
        return answer

    def _events(self, step: Step) -> Sequence[OutputEvent]:
        events = [*self._parser.feed(step.ids)]
        if step.last:
            events += self._parser.finish(step.generation.plan.finish_reason)
        if not self._stop:
            return events
        return [shown for event in events for shown in self._up_to_stop(event)]

    def _up_to_stop(self, event: OutputEvent) -> Iterator[OutputEvent]:
        """An event with less text, after what other events held back."""
        kind = type(event)
        for other, hold in self._holds.items():
            if other is not kind and (rest := hold.flush()):
                yield other(rest)
        if not isinstance(event, ReasoningDelta | ContentDelta):
            yield event
            return
        text = self._holds.setdefault(type(event), StopHold(self._stop)).push(event.text)
        if text:
            yield type(event)(text)


def new_call_id() -> str:
    """A tool call's id, as vLLM makes them up."""
    return f"chatcmpl-tool-{secrets.token_hex(8)}"
