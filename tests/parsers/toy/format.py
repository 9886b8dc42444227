"""A model family that exists for the tests: everything that a format must bring, in one small file.

Its markup is four control tokens and its tokenizer is bytes. A prompt is `role>text` lines; an answer is
`(thought) text {name:argument}`, where the brackets are control tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parsers.base import (
    Chat,
    ContentDelta,
    Detokenizer,
    EncodedChat,
    Finish,
    FinishedCall,
    FormatError,
    OutputEvent,
    OutputOptions,
    Piece,
    ReasoningDelta,
    Segment,
    SegmentRun,
    ToolArgumentsDelta,
    ToolCallStart,
)

CONTROLS = ("(", ")", "{", "}", "END")
OPEN_THOUGHT, CLOSE_THOUGHT, OPEN_CALL, CLOSE_CALL, END = range(256, 261)
_ASK = SegmentRun.of(Segment("assistant>", False), Segment("(", True))


class ToyFormat:
    """Implements `parsers.base.ModelFormat`."""

    name = "toy"
    family = "toy"
    kv_shape = None
    stop_token_ids: Sequence[int] = (END,)

    def encode(self, chat: Chat) -> EncodedChat:
        pieces: list[Piece] = []
        for place, message in enumerate(chat.messages):
            if not isinstance(message.get("content"), str):
                raise FormatError("only text is supported", f"messages[{place}].content")
            pieces += (Segment(f"{message['role']}>", False), Segment(message["content"], False))
        return EncodedChat([*pieces, _ASK], thinking=True, uncounted_tokens=1, tools=chat.tools)

    def parser(self, options: OutputOptions, detokenizer: Detokenizer) -> ToyParser:
        return ToyParser(options, detokenizer)

    def load_vocabulary(self, ranks: bytes | None = None) -> ToyVocabulary:
        return ToyVocabulary()


class ToyParser:
    """Implements `parsers.base.OutputParser`."""

    reasoning_retracted = False
    incomplete_calls: Sequence[int] = ()

    def __init__(self, options: OutputOptions, detokenizer: Detokenizer) -> None:
        self.reasoning_tokens = 0
        self._detokenizer = detokenizer
        self._inside: int | None = OPEN_THOUGHT if options.thinking else None
        self._call = ""
        self._calls: list[FinishedCall] = []

    def finished_calls(self) -> Sequence[FinishedCall]:
        return self._calls

    def feed(self, token_ids: Sequence[int]) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        for token in token_ids:
            if token < 256:
                self._text(self._detokenizer.push(token), events)
            elif token in (OPEN_THOUGHT, OPEN_CALL):
                self._inside = token
            else:
                self._close(events)
        return events

    def feed_text(self, text: str) -> list[OutputEvent]:
        return [ContentDelta(text)]

    def finish(self, engine_reason: str) -> list[OutputEvent]:
        return [Finish("tool_calls" if self._calls and engine_reason == "stop" else engine_reason)]

    def _text(self, text: str, events: list[OutputEvent]) -> None:
        if self._inside == OPEN_THOUGHT:
            self.reasoning_tokens += 1
            events.append(ReasoningDelta(text))
        elif self._inside == OPEN_CALL:
            self._call += text
        else:
            events.append(ContentDelta(text))

    def _close(self, events: list[OutputEvent]) -> None:
        if self._inside == OPEN_CALL:
            name, _, arguments = self._call.partition(":")
            index = len(self._calls)
            events += (ToolCallStart(index, f"toy-{index}", name), ToolArgumentsDelta(index, arguments))
            self._calls.append(FinishedCall(name, arguments))
        self._inside, self._call = None, ""


class ToyVocabulary:
    """Implements `parsers.base.Vocabulary`."""

    size = 261

    def encode_text(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def control_id(self, text: str) -> int:
        return {name: 256 + number for number, name in enumerate(CONTROLS)}[text]

    def token_bytes(self) -> list[bytes]:
        return [*(bytes([byte]) for byte in range(256)), *(name.encode() for name in CONTROLS)]


def said(text: str) -> list[int]:
    """Ids of an answer in which every bracket is a control token."""
    ids: list[Any] = [
        256 + CONTROLS.index(char) if char in CONTROLS else list(char.encode()) for char in text
    ]
    flat = [token for each in ids for token in (each if isinstance(each, list) else [each])]
    return [*flat, END]
