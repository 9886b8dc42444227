"""A model with no reasoning or tool markup: whatever it says is content.

The parser also reads completions without a chat. As a format of its own it serves base models: a chat
becomes lines of `role: text`, and the tokenizer is bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from parsers.base import (
    Chat,
    ContentDelta,
    Detokenizer,
    EncodedChat,
    Finish,
    FinishedCall,
    FormatError,
    KvShape,
    OutputEvent,
    OutputOptions,
    Segment,
)
from parsers.constraints import requested

END = "<|end|>"
END_ID = 256


class PlainFormat:
    """Implements `parsers.base.ModelFormat`."""

    name = "plain"
    family = "plain"
    kv_shape: KvShape | None = None
    image_marker: str | None = None

    def __init__(self, stop_token_ids: Sequence[int] = ()) -> None:
        """`stop_token_ids` end an answer and are not shown; give another family's to read its completions."""
        self.stop_token_ids = stop_token_ids

    def encode(self, chat: Chat) -> EncodedChat:
        lines = [_line(place, message) for place, message in enumerate(chat.messages)]
        return EncodedChat(
            [Segment("".join(lines) + "assistant:", False)], False, 0, constraint=requested(chat)
        )

    def parser(self, options: OutputOptions, detokenizer: Detokenizer) -> PlainParser:
        return PlainParser(detokenizer, self.stop_token_ids)

    def load_vocabulary(self, ranks: bytes | None = None) -> ByteVocabulary:
        """Raises ValueError for ranks: this format has none."""
        if ranks is not None:
            raise ValueError("the plain format reads no vocabulary file")
        return ByteVocabulary()


class PlainParser:
    """Implements `parsers.base.OutputParser`."""

    reasoning_tokens = 0
    reasoning_retracted = False
    incomplete_calls: Collection[int] = ()

    def __init__(self, detokenizer: Detokenizer, stop_token_ids: Collection[int] = ()) -> None:
        self._detokenizer = detokenizer
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stopped = False

    def finished_calls(self) -> Sequence[FinishedCall]:
        return ()

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
        """The end; half a character is dropped."""
        return [Finish(engine_reason)]


class ByteVocabulary:
    """Implements `parsers.base.Vocabulary`: an id is a byte, and one more ends an answer."""

    size = 257

    def encode_text(self, text: str) -> Sequence[int]:
        return list(text.encode("utf-8", "replace"))

    def control_id(self, text: str) -> int:
        return {END: END_ID}[text]

    def token_bytes(self) -> list[bytes]:
        return [*(bytes([byte]) for byte in range(256)), END.encode()]


def _line(place: int, message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    parts = [{"text": content}] if isinstance(content, str) else content
    try:
        return f"{message['role']}: {''.join(part['text'] for part in parts)}\n"
    except (KeyError, TypeError):
        raise FormatError("only messages of text are supported", f"messages[{place}]") from None
