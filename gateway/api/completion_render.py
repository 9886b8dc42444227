"""Events of a plain completion as OpenAI text chunks or as one body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gateway.api.sse import DONE, encode_text, frame, stream_prefix
from gateway.api.usage import Usage
from parsers.base import ContentDelta, Finish, OutputEvent, OutputParser


class CompletionStream:
    """Events to server-sent text chunks; the counterpart of `ChatStream`."""

    def __init__(self, stream_id: str, created: int, model: str) -> None:
        self._prefix = stream_prefix(stream_id, "text_completion", created, model)
        self._reasons: dict[int, str] = {}
        self._pending: list[bytes] = []
        self.write: Callable[[bytes], None] | None = None

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, ContentDelta):
                self._pending.append(self._chunk(index, event.text, b"null"))
            elif isinstance(event, Finish):
                self._reasons[index] = event.reason

    def flush(self) -> None:
        if self.write is not None and self._pending:
            self.write(self.take())

    def take(self) -> bytes:
        data = b"".join(self._pending)
        self._pending.clear()
        return data

    def end(self, choices: int, usage: Usage | None) -> bytes:
        for index in range(choices):
            self._pending.append(self._chunk(index, "", encode_text(self._reasons.get(index, "stop"))))
        if usage is not None:
            self._pending.append(b'%b],"usage":%b}\n\n' % (self._prefix, msgspec.json.encode(usage)))
        return self.take() + DONE

    def fail(self, error_body: bytes) -> bytes:
        return self.take() + frame(error_body) + DONE

    def _chunk(self, index: int, text: str, reason: bytes) -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}]}\n\n' % (
            self._prefix,
            index,
            encode_text(text),
            reason,
        )


class CompletionWhole:
    """Events to one text_completion body."""

    def __init__(self, stream_id: str, created: int, model: str, choices: int) -> None:
        self._id, self._created, self._model = stream_id, created, model
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._reasons = ["stop"] * choices

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, ContentDelta):
                self._texts[index].append(event.text)
            elif isinstance(event, Finish):
                self._reasons[index] = event.reason

    def flush(self) -> None:
        """Nothing goes out before the end."""

    def body(self, usage: Usage, parsers: Sequence[OutputParser]) -> bytes:
        choices = [
            {"index": index, "text": "".join(text), "logprobs": None, "finish_reason": reason}
            for index, (text, reason) in enumerate(zip(self._texts, self._reasons, strict=True))
        ]
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "usage": usage,
            }
        )
