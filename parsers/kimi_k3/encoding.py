"""A chat as Kimi-K3's prompt: a list of segments, each of which is tokenized alone.

Only the markers this module writes are control segments. Everything that came with the request is
ordinary text, so a user who types a marker gets its characters and no structure. A segment's borders
decide the ids: an attribute is four segments, as in the model's own encoder.

Order: tools, effort note, conversation, tool-choice note, response-format note, opened answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from parsers.base import Chat, EncodedChat, FormatError, Segment
from parsers.kimi_k3.effort import Thinking, resolve_thinking
from parsers.kimi_k3.markers import CLOSE, END_OF_MSG, OPEN, SEP, escape_attribute
from parsers.kimi_k3.tool_history import (
    Call,
    Message,
    Numbered,
    Revision,
    order_results,
    parse_arguments,
    read_calls,
)

STUB_TOKENS = 3
"""`<|open|>think<|sep|>` at a prompt's end, which the model's own service does not bill."""

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
_MORE_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
    "channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_TOOL_CHOICE = {
    "required": (
        "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message."
    ),
    "none": (
        "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message."
    ),
}
_RESPONSE_FORMAT = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) "
    "or any additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n"
# `developer` is what newer OpenAI clients call a system message.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

_OPEN, _CLOSE, _SEP, _END = (Segment(marker, True) for marker in (OPEN, CLOSE, SEP, END_OF_MSG))
_EQUALS, _QUOTE = Segment('="', False), Segment('"', False)


# The same few tags make up every prompt.
@lru_cache(maxsize=4_096)
def _opening(name: str, attributes: tuple[tuple[str, str], ...]) -> tuple[Segment, ...]:
    """An opening tag. Each attribute is four segments, three when its value is empty."""
    segments = [_OPEN, Segment(name, False)]
    for key, value in attributes:
        escaped = [Segment(escape_attribute(value), False)] if value else []
        segments += (Segment(" " + key, False), _EQUALS, *escaped, _QUOTE)
    return (*segments, _SEP)


@lru_cache
def _closing(name: str) -> tuple[Segment, ...]:
    return (_CLOSE, Segment(name, False), _SEP)


_END_OF_MESSAGE = (*_closing("message"), _END)


class Prompt:
    """The segments of a prompt under construction."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def text(self, text: str) -> None:
        if text:
            self.segments.append(Segment(text, False))

    def open(self, name: str, *attributes: tuple[str, str]) -> None:
        self.segments += _opening(name, attributes)

    def close(self, name: str) -> None:
        self.segments += _closing(name)

    def end_message(self) -> None:
        self.segments += _END_OF_MESSAGE

    def element(self, name: str, text: str, *attributes: tuple[str, str]) -> None:
        self.open(name, *attributes)
        self.text(text)
        self.close(name)

    def note(self, kind: str, text: str) -> None:
        """A system message that the encoder itself writes."""
        self.open("message", ("role", "system"), ("type", kind))
        self.text(text)
        self.end_message()

    def image(self, width: int, height: int) -> None:
        """An image's place; the size is that of the original in pixels."""
        self.segments += (
            Segment("<|media_begin|>", True),
            Segment(f"image {width}x{height}", False),
            Segment("<|media_content|>", True),
            Segment("<|media_pad|>", True),
            Segment("<|media_end|>", True),
        )


def encode_chat(chat: Chat, revision: Revision = "b") -> EncodedChat:
    """The prompt of a chat. Raises FormatError, with the field's name, for what cannot be expressed.

    Revisions differ in how past tool arguments are spelled (see `tool_history`), in reasoning that is
    only space (b writes it) and in unknown roles (a drops the message, b refuses it).
    """
    try:
        return _Encoder(chat, revision).encode()
    except RecursionError:
        raise FormatError("the request is nested too deeply") from None


class _Encoder:
    def __init__(self, chat: Chat, revision: Revision) -> None:
        self._chat = chat
        self._revision = revision
        self._prompt = Prompt()
        self._thinking: Thinking = resolve_thinking(chat)
        self._calls: list[Call] = []
        self._results_seen = 0
        messages = [
            (place, message) for place, message in enumerate(chat.messages) if self._keeps(place, message)
        ]
        last = messages[-1] if messages else None
        self._partial = last if last and last[1]["role"] == "assistant" and last[1].get("partial") else None
        self._messages = messages[:-1] if self._partial else messages
        self._tools = [
            *(chat.tools or ()),
            *(tool for _, message in messages for tool in _own_tools(message)),
        ]

    def encode(self) -> EncodedChat:
        prompt = self._prompt
        if self._chat.tools:
            prompt.note("tool-declare", _TOOLS + _fenced(self._chat.tools))
        if self._thinking.effort:
            prompt.note("thinking-effort", _EFFORT.format(self._thinking.effort))
        for is_tool, group in groupby(self._messages, lambda numbered: numbered[1]["role"] == "tool"):
            if is_tool:
                self._results(list(group))
            else:
                for place, message in group:
                    self._message(place, message)
        self._closing_notes()
        return self._open_answer()

    def _keeps(self, place: int, message: object) -> bool:
        role = message.get("role") if isinstance(message, Mapping) else None
        if isinstance(role, str) and role in _ROLES:
            return True
        if self._revision == "a":
            return False
        if not isinstance(message, Mapping):
            raise FormatError("a message is not an object", f"messages[{place}]")
        raise FormatError(f"{role!r} is not a role of a message", f"messages[{place}].role")

    def _message(self, place: int, message: Message) -> None:
        role = _ROLES[message["role"]]
        if role == "assistant":
            self._assistant(place, message)
        elif role == "system" and message.get("tools"):
            self._prompt.note("tool-declare", _MORE_TOOLS + _fenced(message["tools"]))
        else:
            self._open_message(role, message)
            self._content(place, message)
            self._prompt.end_message()

    def _open_message(self, role: str, message: Message) -> None:
        name = message.get("name")
        self._prompt.open("message", ("role", role), *([("name", str(name))] if name else []))

    def _assistant(self, place: int, message: Message) -> None:
        self._open_message("assistant", message)
        if self._thinking.on:
            self._prompt.element("think", self._reasoning(place, message))
        self._prompt.open("response")
        self._content(place, message)
        self._prompt.close("response")
        self._tool_calls(place, message)
        self._prompt.end_message()

    def _reasoning(self, place: int, message: Message) -> str:
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        if not isinstance(reasoning, str):
            raise FormatError("reasoning is not a string", f"messages[{place}].reasoning_content")
        return "" if self._revision == "a" and reasoning.isspace() else reasoning

    def _tool_calls(self, place: int, message: Message) -> None:
        calls = read_calls(message, place)
        self._calls = [call for call, _ in calls]
        self._results_seen = 0
        if not calls:
            return
        self._prompt.open("tools")
        for index, (call, arguments) in enumerate(calls, 1):
            self._prompt.open("call", ("tool", call.name), ("index", str(index)))
            self._arguments(arguments)
            self._prompt.close("call")
        self._prompt.close("tools")

    def _arguments(self, arguments: object) -> None:
        parsed = parse_arguments(arguments, self._revision)
        if isinstance(parsed, str):
            self._prompt.element("json", parsed, ("type", "object"))
            return
        for key, kind, text in parsed:
            self._prompt.element("argument", text, ("key", key), ("type", kind))

    def _results(self, run: Sequence[Numbered]) -> None:
        for place, message, name in order_results(run, self._calls, self._results_seen):
            self._results_seen += 1
            self._prompt.open("message", ("role", "tool"), ("tool", name), ("index", str(self._results_seen)))
            self._content(place, message)
            self._prompt.end_message()

    def _content(self, place: int, message: Message) -> None:
        content = message.get("content")
        param = f"messages[{place}].content"
        if isinstance(content, str):
            self._prompt.text(content)
        elif isinstance(content, Sequence):
            for number, part in enumerate(content):
                self._part(part, f"{param}[{number}]")
        elif content is not None:
            raise FormatError("content is neither a string nor a list of parts", param)

    def _part(self, part: object, param: str) -> None:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind is None:
            raise FormatError("a content part has no type", param)
        if kind in ("image", "image_url"):
            self._prompt.image(*_image_size(part, param))
        elif isinstance(part.get("text"), str):
            self._prompt.text(part["text"])
        else:
            raise FormatError(f"a content part of type {kind!r} is not supported", param)

    def _closing_notes(self) -> None:
        choice = self._chat.tool_choice
        if self._tools and isinstance(choice, str) and choice in _TOOL_CHOICE:
            self._prompt.note("tool-choice", _TOOL_CHOICE[choice])
        wanted = self._chat.response_format
        kind = wanted.get("type") if isinstance(wanted, Mapping) else None
        if wanted and kind in ("json_object", "json_schema"):
            schema = _SCHEMA + _fenced(_schema_of(wanted)) if kind == "json_schema" else ""
            self._prompt.note("response-format", _RESPONSE_FORMAT.format(kind) + schema)

    def _open_answer(self) -> EncodedChat:
        thinking, uncounted = self._thinking.on, 0
        if self._partial:
            thinking = self._continue(*self._partial)
        elif self._chat.template_kwargs.get("add_generation_prompt", True):
            self._prompt.open("message", ("role", "assistant"))
            self._prompt.open("think" if thinking else "response")
            uncounted = STUB_TOKENS
        return EncodedChat(self._prompt.segments, thinking, uncounted, self._tools or None)

    def _continue(self, place: int, message: Message) -> bool:
        """An answer that goes on from a given beginning; true when that ends inside the reasoning."""
        if message.get("tool_calls"):
            raise FormatError("a partial message has no tool calls", f"messages[{place}].tool_calls")
        self._open_message("assistant", message)
        if self._thinking.on:
            reasoning = self._reasoning(place, message)
            self._prompt.open("think")
            self._prompt.text(reasoning)
            if reasoning and not message.get("content"):
                return True
            self._prompt.close("think")
        self._prompt.open("response")
        self._content(place, message)
        return False


def _own_tools(message: Message) -> Sequence[Any]:
    tools = message.get("tools") if _ROLES[message["role"]] == "system" else None
    return tools if isinstance(tools, Sequence) and not isinstance(tools, str) else ()


def _image_size(part: Message, param: str) -> tuple[int, int]:
    size = part.get("image_size")
    if isinstance(size, Sequence) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return size[0], size[1]
    raise FormatError("an image is not supported here: its size in pixels is not known", param)


def _schema_of(response_format: Mapping[str, Any]) -> Any:
    wrapped = response_format.get("json_schema")
    if not isinstance(wrapped, Mapping):
        return wrapped
    return wrapped.get("schema", wrapped.get("json_schema", wrapped))


def _fenced(value: Any) -> str:
    """JSON with sorted keys, so that the same tools are the same prompt however a client orders them."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return f"```json\n{compact}\n```"
