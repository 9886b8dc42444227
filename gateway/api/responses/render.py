"""Events of a chat generation as OpenAI's response, streamed or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.api.head import Head
from gateway.api.logprobs import chat_entry, covering
from gateway.api.renderer import Renderer
from gateway.api.responses.items import Item, Json, response, shown_items, status_of
from gateway.api.sse import FrameBuffer, named_frame
from gateway.api.usage import Usage
from gateway.serving.errors import RequestError
from gateway.serving.token_watch import TokenDetail
from parsers.base import (
    ContentDelta,
    Finish,
    OutputEvent,
    OutputParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)

_PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
_EVENTS = {"reasoning": "response.reasoning_text", "message": "response.output_text"}


class _Output(Renderer):
    """Events to items; one grows at a time."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.items: list[Item] = []
        self.end = Finish("stop")
        self._alternatives = head.details.logprobs if head.details is not None else None
        self._tokens: list[TokenDetail] = []

    def on_token(self, index: int, token: TokenDetail) -> None:
        if self._alternatives is not None:
            self._tokens.append(token)

    def open(self, kind: str, **members: Any) -> Item:
        number = f"{self.head.id.removeprefix('resp_')}_{len(self.items)}"
        item = Item(id=_PREFIXES[kind] + number, kind=kind, pieces=[], logprobs=[], **members)
        self.items.append(item)
        return item

    def growing(self, kind: str) -> Item | None:
        return self.items[-1] if self.items and self.items[-1].kind == kind else None

    def entries(self, text: str) -> list[Json]:
        """Of the tokens that made a piece of the answer's text."""
        tokens, self._tokens = covering(self._tokens, text), []
        return [chat_entry(token, self._alternatives or 0) for token in tokens]


class ResponseStream(FrameBuffer):
    """Typed events with their numbers."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self._output = _Output(head)
        self._number = 0
        self.on_token = self._output.on_token
        self.on_prompt = self._output.on_prompt

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        self._begin()
        for event in events:
            if isinstance(event, ReasoningDelta):
                self._text("reasoning", event.text)
            elif isinstance(event, ContentDelta):
                self._text("message", event.text)
            elif isinstance(event, ToolCallStart):
                self._open("function_call", call_id=event.id, name=event.name)
            elif isinstance(event, ToolArgumentsDelta):
                item = self._output.items[-1]
                item.pieces.append(event.text)
                self._of_item("response.function_call_arguments.delta", item, delta=event.text)
            else:
                self._output.end = event

    def end(self, choices: int, usage: Usage | None, own: Sequence[Usage] = ()) -> bytes:
        self._begin()
        end, head = self._output.end, self._output.head
        status = status_of(end)
        self._close(status)
        output = shown_items(self._output.items, status)
        self._event(f"response.{status}", response=response(head, status, output, usage, end))
        return self.take()

    def fail(self, error: RequestError) -> bytes:
        self._begin()
        self._event("error", code=error.code, message=error.message, param=error.param)
        output = [item.shown("incomplete") for item in self._output.items]
        failure = {"code": error.code or "server_error", "message": error.message}
        self._event("response.failed", response=response(self._output.head, "failed", output, error=failure))
        return self.take()

    def _begin(self) -> None:
        if self._number == 0:
            begun = response(self._output.head, "in_progress", [])
            self._event("response.created", response=begun)
            self._event("response.in_progress", response=begun)

    def _text(self, kind: str, text: str) -> None:
        item = self._output.growing(kind) or self._open(kind)
        item.pieces.append(text)
        more: Json = {}
        if kind == "message":
            more["logprobs"] = entries = self._output.entries(text)
            item.logprobs += entries
        self._of_item(f"{_EVENTS[kind]}.delta", item, content_index=0, delta=text, **more)

    def _open(self, kind: str, **members: Any) -> Item:
        self._close("completed")
        item = self._output.open(kind, **members)
        place = len(self._output.items) - 1
        self._event("response.output_item.added", output_index=place, item=item.shown("in_progress"))
        if kind != "function_call":
            self._of_item("response.content_part.added", item, content_index=0, part=item.part())
        return item

    def _close(self, status: str) -> None:
        """End the item that grows."""
        if not self._output.items:
            return
        item = self._output.items[-1]
        if item.kind == "function_call":
            self._of_item("response.function_call_arguments.done", item, arguments=item.text, name=item.name)
        else:
            more = {"logprobs": item.logprobs} if item.kind == "message" else {}
            self._of_item(f"{_EVENTS[item.kind]}.done", item, content_index=0, text=item.text, **more)
            self._of_item("response.content_part.done", item, content_index=0, part=item.part())
        place = len(self._output.items) - 1
        self._event("response.output_item.done", output_index=place, item=item.shown(status))

    def _of_item(self, kind: str, item: Item, **members: Any) -> None:
        self._event(kind, item_id=item.id, output_index=len(self._output.items) - 1, **members)

    def _event(self, kind: str, **members: Any) -> None:
        event = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        self._pending.append(named_frame(kind, msgspec.json.encode(event)))


class ResponseWhole:
    """One response body."""

    def __init__(self, head: Head) -> None:
        self._output = _Output(head)
        self.on_token = self._output.on_token
        self.on_prompt = self._output.on_prompt

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        for event in events:
            if isinstance(event, ReasoningDelta):
                self._text("reasoning", event.text)
            elif isinstance(event, ContentDelta):
                item = self._text("message", event.text)
                item.logprobs += self._output.entries(event.text)
            elif isinstance(event, ToolCallStart):
                self._output.open("function_call", call_id=event.id, name=event.name)
            elif isinstance(event, ToolArgumentsDelta):
                self._output.items[-1].pieces.append(event.text)
            else:
                self._output.end = event

    def flush(self) -> None:
        """Nothing goes out before the end."""

    def body(self, usage: Usage, parsers: Sequence[OutputParser]) -> bytes:
        end, items = self._output.end, self._kept(parsers[0])
        status = status_of(end)
        output = shown_items(items, status)
        return msgspec.json.encode(response(self._output.head, status, output, usage, end))

    def _text(self, kind: str, text: str) -> Item:
        item = self._output.growing(kind) or self._output.open(kind)
        item.pieces.append(text)
        return item

    def _kept(self, parser: OutputParser) -> list[Item]:
        """Without what the parser takes back."""
        calls = [item for item in self._output.items if item.kind == "function_call"]
        dropped = {calls[index].id for index in parser.incomplete_calls if index < len(calls)}
        return [
            item
            for item in self._output.items
            if item.id not in dropped and not (parser.reasoning_retracted and item.kind == "reasoning")
        ]
