"""Events of a chat generation as Anthropic's message, streamed or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.anthropic.errors import error_body
from gateway.api.head import Head
from gateway.api.renderer import Renderer
from gateway.api.sse import FrameBuffer, encode_text, named_frame
from gateway.api.usage import Usage
from gateway.serving.errors import RequestError
from parsers.answer import AnswerBuilder
from parsers.base import (
    ContentDelta,
    Finish,
    OutputEvent,
    OutputParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b:%b}}\n\n'
)
_THINKING, _TEXT, _INPUT = (
    b'"thinking_delta","thinking"',
    b'"text_delta","text"',
    b'"input_json_delta","partial_json"',
)


def stop_of(end: Finish) -> dict[str, Any]:
    """Why it ended."""
    matched = end.stop if isinstance(end.stop, str) else None
    reason = "stop_sequence" if matched is not None else _REASONS.get(end.reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": matched}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Input tokens are those that were not read from the cache."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


def _message(head: Head, **rest: Any) -> dict[str, Any]:
    return {"id": head.id, "type": "message", "role": "assistant", "model": head.model, **rest}


class MessageStream(FrameBuffer, Renderer):
    """One block at a time: thinking, text, or a tool's input."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self._head = head
        self._begun = False
        self._block = -1
        self._kind: bytes | None = None
        self._end = Finish("stop")

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        if not self._begun:
            self._begin()
        for event in events:
            if isinstance(event, ReasoningDelta):
                self._delta(_THINKING, event.text)
            elif isinstance(event, ContentDelta):
                self._delta(_TEXT, event.text)
            elif isinstance(event, ToolArgumentsDelta):
                self._delta(_INPUT, event.text)
            elif isinstance(event, ToolCallStart):
                self._open(_INPUT, {"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
            else:
                self._end = event

    def end(self, choices: int, usage: Usage | None, own: Sequence[Usage] = ()) -> bytes:
        if not self._begun:
            self._begin()
        self._close()
        counts = usage_of(usage) if usage is not None else {"output_tokens": 0}
        self._event("message_delta", delta=stop_of(self._end), usage=counts)
        self._event("message_stop")
        return self.take()

    def fail(self, error: RequestError) -> bytes:
        return self.take() + named_frame("error", error_body(error, self._head.id))

    def _begin(self) -> None:
        self._begun = True
        counts = {"input_tokens": self._head.prompt_tokens, "output_tokens": 0}
        message = _message(self._head, content=[], stop_reason=None, stop_sequence=None, usage=counts)
        self._event("message_start", message=message)

    def _delta(self, kind: bytes, text: str) -> None:
        if kind is not self._kind:
            block = "thinking" if kind is _THINKING else "text"
            signature = {"signature": ""} if kind is _THINKING else {}
            self._open(kind, {"type": block, block: "", **signature})
        self._pending.append(_DELTA % (self._block, kind, encode_text(text)))

    def _open(self, kind: bytes, block: dict[str, Any]) -> None:
        self._close()
        self._kind = kind
        self._block += 1
        self._event("content_block_start", index=self._block, content_block=block)

    def _close(self) -> None:
        if self._kind is _THINKING:
            delta = {"type": "signature_delta", "signature": self._head.id}
            self._event("content_block_delta", index=self._block, delta=delta)
        if self._kind is not None:
            self._event("content_block_stop", index=self._block)
        self._kind = None

    def _event(self, kind: str, **members: Any) -> None:
        self._pending.append(named_frame(kind, msgspec.json.encode({"type": kind, **members})))


class MessageWhole(Renderer):
    """One message body."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._answer = AnswerBuilder()

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        self._answer.add(events)

    def flush(self) -> None:
        """Nothing goes out before the end."""

    def body(self, usage: Usage, parsers: Sequence[OutputParser]) -> bytes:
        answer = self._answer.build(parsers[0])
        blocks: list[dict[str, Any]] = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": self._head.id})
        if answer.content:
            blocks.append({"type": "text", "text": answer.content})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
            for call in answer.tool_calls
        ]
        stop = stop_of(Finish(answer.finish_reason, answer.stop))
        return msgspec.json.encode(_message(self._head, content=blocks, **stop, usage=usage_of(usage)))


def _input(arguments: str) -> Any:
    """A call's arguments as an object; what the model wrote under `raw`, should it be none."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {"raw": arguments}
    return msgspec.Raw(arguments.encode())
