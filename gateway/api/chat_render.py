"""Events of a chat generation as OpenAI chunks or as one OpenAI message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.dialects import OPENAI
from gateway.api.head import Head
from gateway.api.logprobs import chat_entry
from gateway.api.renderer import Renderer
from gateway.api.sse import DONE, FrameBuffer, encode_text, stream_prefix
from gateway.api.usage import Usage
from gateway.serving.errors import RequestError
from gateway.serving.token_watch import TokenDetail
from parsers.answer import Answer, AnswerBuilder, ToolCall
from parsers.base import (
    ContentDelta,
    Finish,
    OutputEvent,
    OutputParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)

_STOPPED = Finish("stop")
_AFTER_TEXT = b'},"finish_reason":null}]}\n\n'
_AFTER_ARGUMENTS = b'}}]},"finish_reason":null}]}\n\n'


class _Heads:
    """What a choice's frames begin with, up to the text."""

    __slots__ = ("arguments", "call", "content", "reasoning", "start", "thinking")

    def __init__(self, start: bytes) -> None:
        self.start = start
        self.content = start + b'"content":'
        self.reasoning = start + b'"reasoning_content":'
        self.call = -1
        """The tool call that `arguments` is for."""
        self.arguments = b""
        self.thinking = False
        """Reasoning has come, and nothing after it."""

    def open_call(self, call: int) -> None:
        self.call = call
        self.arguments = b'%b"tool_calls":[{"index":%d,"function":{"arguments":' % (self.start, call)


class ChatStream(FrameBuffer, Renderer):
    """Events to server-sent chunks; hands the bytes of each read to `write`, once that is set.

    The first frame of a choice carries the role alone, the last an empty delta and the finish reason, which
    waits for `end` so that nothing of a choice can follow it.
    """

    def __init__(self, stream_id: str, created: int, model: str) -> None:
        super().__init__()
        self._prefix = stream_prefix(stream_id, "chat.completion.chunk", created, model)
        self._heads: dict[int, _Heads] = {}
        self._ends: dict[int, Finish] = {}
        self.only_reasons = False
        """A stream that breaks ends with a finish reason of the vendor's, instead of an error frame."""

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        heads = self._heads.get(index) or self._open(index)
        pending = self._pending
        for event in events:
            kind = type(event)
            if kind is ReasoningDelta:
                heads.thinking = True
                pending += heads.reasoning, encode_text(event.text), _AFTER_TEXT  # type: ignore[union-attr]
            elif kind is ContentDelta:
                if heads.thinking:
                    self._end_thinking(heads)
                pending += heads.content, encode_text(event.text), _AFTER_TEXT  # type: ignore[union-attr]
            elif kind is ToolArgumentsDelta:
                if heads.call != event.index:  # type: ignore[union-attr]
                    heads.open_call(event.index)  # type: ignore[union-attr]
                pending += heads.arguments, encode_text(event.text), _AFTER_ARGUMENTS  # type: ignore[union-attr]
            else:
                if heads.thinking:
                    self._end_thinking(heads)
                self._rare(index, heads.start, event)

    def _end_thinking(self, heads: _Heads) -> None:
        """The frame that tells where reasoning ends, as the vendor's streams have it."""
        heads.thinking = False
        self._pending.append(heads.reasoning + b'""' + _AFTER_TEXT)

    def end(self, choices: int, usage: Usage | None, own: Sequence[Usage] = ()) -> bytes:
        """The rest of the stream: finish frames with each choice's own usage, the usage chunk if asked for,
        [DONE]."""
        for index in range(choices):
            self._heads.get(index) or self._open(index)
            self.finish_chunk(index, own[index] if own else None)
        if usage is not None:
            self._pending.append(b'%b],"usage":%b}\n\n' % (self._prefix, msgspec.json.encode(usage)))
        return self.take() + DONE

    def finish_chunk(self, index: int, usage: Usage | None = None) -> None:
        """The last chunk of a choice."""
        end = self._ends.get(index, _STOPPED)
        rest = b"" if end.stop is None else b',"stop_reason":%b' % encode_text(end.stop)
        if usage is not None:
            rest += b',"usage":%b' % msgspec.json.encode(usage)
        frame = b'%b{"index":%d,"delta":{},"finish_reason":%b%b}]}\n\n'
        self._pending.append(frame % (self._prefix, index, encode_text(end.reason), rest))

    def fail(self, error: RequestError) -> bytes:
        """The rest of a stream that broke: an error frame, then [DONE]."""
        if self.only_reasons:
            reason = "engine_overloaded" if error.status in (429, 503) else "server_interrupted"
            for index in self._heads or [0]:
                self._heads.get(index) or self._open(index)
                self._ends[index] = Finish(reason)
                self.finish_chunk(index)
            return self.take() + DONE
        return self.take() + OPENAI.last_frames(error)

    def _open(self, index: int) -> _Heads:
        heads = self._heads[index] = _Heads(b'%b{"index":%d,"delta":{' % (self._prefix, index))
        self._pending.append(b'%b"role":"assistant","content":""},"finish_reason":null}]}\n\n' % heads.start)
        return heads

    def _rare(self, index: int, head: bytes, event: OutputEvent) -> None:
        if isinstance(event, ToolCallStart):
            call = b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}' % (
                event.index,
                encode_text(event.id),
                encode_text(event.name),
            )
        else:
            assert isinstance(event, Finish)
            self._ends[index] = event
            return
        self._pending.append(b'%b"tool_calls":[%b]},"finish_reason":null}]}\n\n' % (head, call))


class ChatWhole(Renderer):
    """Events to one chat.completion body."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._answers = [AnswerBuilder() for _ in range(head.choices)]
        self._alternatives = head.details.logprobs if head.details is not None else None
        self._entries: list[list[dict[str, Any]]] = [[] for _ in range(head.choices)]

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        self._answers[index].add(events)

    def on_token(self, index: int, token: TokenDetail) -> None:
        if self._alternatives is not None:
            self._entries[index].append(chat_entry(token, self._alternatives))

    def flush(self) -> None:
        """Nothing goes out before the end."""

    def body(self, usage: Usage, parsers: Sequence[OutputParser]) -> bytes:
        answers = [answer.build(parser) for answer, parser in zip(self._answers, parsers, strict=True)]
        head = self._head
        return msgspec.json.encode(
            {
                "id": head.id,
                "object": "chat.completion",
                "created": head.created,
                "model": head.model,
                "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
                "usage": usage,
            }
        )

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.content or (None if answer.tool_calls else ""),
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [_call(call) for call in answer.tool_calls]
        return {
            "index": index,
            "message": message,
            "logprobs": None if self._alternatives is None else {"content": self._entries[index]},
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop,
        }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
