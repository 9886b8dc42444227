"""A chat as Kimi-K3's prompt: a list of segments, each of which is tokenized alone.

Only the markers this module writes are control segments. Everything that came with the request is
ordinary text, so a user who types a marker gets its characters and no structure. A segment's borders
decide the ids: an attribute is four segments, as in the model's own encoder.

Order: tools, effort note, conversation, tool-choice note, response-format note, opened answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from parsers.base import Chat, EncodedChat, FormatError, Segment, SegmentRun
from parsers.kimi_k3.constraint import constraint_of
from parsers.kimi_k3.effort import Thinking, resolve_thinking
from parsers.kimi_k3.prompt import END_MESSAGE, Prompt, closing, opening
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

# What is the same wherever it comes, in as few runs as may be.
_OPENINGS = {role: SegmentRun.of(*opening("message", role=role)) for role in ("system", "user", "assistant")}
_NOTES = {
    kind: SegmentRun.of(*opening("message", role="system", type=kind))
    for kind in ("tool-declare", "tool-choice", "response-format")
}
_EFFORTS = {
    effort: SegmentRun.of(
        *opening("message", role="system", type="thinking-effort"),
        Segment(_EFFORT.format(effort), False),
        *END_MESSAGE,
    )
    for effort in ("low", "high", "max")
}
_THINK, _RESPONSE = SegmentRun.of(*opening("think")), SegmentRun.of(*opening("response"))
_ASSISTANT_THINK = SegmentRun.of(*opening("message", role="assistant"), *opening("think"))
_ASSISTANT_RESPONSE = SegmentRun.of(*opening("message", role="assistant"), *opening("response"))
_THINK_TO_RESPONSE = SegmentRun.of(*closing("think"), *opening("response"))
_END_AFTER_RESPONSE = SegmentRun.of(*closing("response"), *END_MESSAGE)
_RESPONSE_TO_TOOLS = SegmentRun.of(*closing("response"), *opening("tools"))
_END_AFTER_TOOLS = SegmentRun.of(*closing("tools"), *END_MESSAGE)
_JSON = SegmentRun.of(*opening("json", type="object"))


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
        self._tools: dict[str, Any] = _numbered("tools", chat.tools or ())
        self._calls: list[Call] = []
        """Of the last assistant message: what tool results answer."""
        self._results_seen = 0
        self._unsized_images: list[str] = []

    def encode(self) -> EncodedChat:
        if "image_prompts" in self._chat.template_kwargs:
            raise FormatError("images are parts of messages", "chat_template_kwargs.image_prompts")
        if self._chat.tools:
            self._note("tool-declare", _TOOLS + _fenced(self._chat.tools))
        if self._thinking.effort:
            self._prompt.fixed(_EFFORTS[self._thinking.effort])
        partial = self._partial()
        self._conversation(self._chat.messages[: partial[0]] if partial else self._chat.messages)
        self._closing_notes()
        return self._ask(partial)

    def _partial(self) -> Numbered | None:
        """The last message, if the answer goes on from it."""
        for place, message in reversed(list(enumerate(self._chat.messages))):
            if role := self._role(place, message):
                return (place, message) if role == "assistant" and message.get("partial") else None
        return None

    def _conversation(self, messages: Sequence[Message]) -> None:
        results: list[Numbered] = []
        for place, message in enumerate(messages):
            role = self._role(place, message)
            if role == "tool":
                results.append((place, message))
                continue
            if results:
                self._results(results)
                results = []
            if role == "assistant":
                self._assistant(place, message)
            elif role:
                self._told(role, place, message)
        if results:
            self._results(results)

    def _role(self, place: int, message: object) -> str | None:
        """The role that the prompt names; None for a message that is left out."""
        try:
            return _ROLES[message["role"]]  # type: ignore[index]
        except (KeyError, TypeError):
            if self._revision == "a":
                return None
        if not isinstance(message, Mapping):
            raise FormatError("a message is not an object", f"messages[{place}]")
        raise FormatError(f"{message.get('role')!r} is not a role of a message", f"messages[{place}].role")

    def _told(self, role: str, place: int, message: Message) -> None:
        """A system or a user message."""
        if role == "system" and message.get("tools"):
            self._note("tool-declare", _MORE_TOOLS + _fenced(message["tools"]))
            self._tools |= _numbered(f"messages[{place}].tools", _own_tools(message))
            return
        self._open_message(role, message)
        self._content(place, message)
        self._prompt.end_message()

    def _note(self, kind: str, text: str) -> None:
        """A system message that the encoder itself writes."""
        self._prompt.fixed(_NOTES[kind])
        self._prompt.text(text)
        self._prompt.end_message()

    def _open_message(self, role: str, message: Message) -> None:
        if name := message.get("name"):
            self._prompt.open("message", ("role", role), ("name", str(name)))
        else:
            self._prompt.fixed(_OPENINGS[role])

    def _assistant(self, place: int, message: Message) -> None:
        self._open_answer(message)
        if self._thinking.on:
            self._prompt.text(self._reasoning(place, message))
            self._prompt.fixed(_THINK_TO_RESPONSE)
        self._content(place, message)
        self._results_seen = 0
        if message.get("tool_calls"):
            self._prompt.fixed(_RESPONSE_TO_TOOLS)
            self._tool_calls(place, message)
            self._prompt.fixed(_END_AFTER_TOOLS)
        else:
            self._calls = []
            self._prompt.fixed(_END_AFTER_RESPONSE)

    def _open_answer(self, message: Message) -> None:
        """An assistant message with its first channel."""
        if message.get("name"):
            self._open_message("assistant", message)
            self._prompt.fixed(_THINK if self._thinking.on else _RESPONSE)
        else:
            self._prompt.fixed(_ASSISTANT_THINK if self._thinking.on else _ASSISTANT_RESPONSE)

    def _reasoning(self, place: int, message: Message) -> str:
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        if not isinstance(reasoning, str):
            raise FormatError("reasoning is not a string", f"messages[{place}].reasoning_content")
        return "" if self._revision == "a" and reasoning.isspace() else reasoning

    def _tool_calls(self, place: int, message: Message) -> None:
        calls = read_calls(message, place)
        self._calls = [call for call, _ in calls]
        for index, (call, arguments) in enumerate(calls, 1):
            self._prompt.open("call", ("tool", call.name), ("index", str(index)))
            self._arguments(arguments)
            self._prompt.close("call")

    def _arguments(self, arguments: object) -> None:
        parsed = parse_arguments(arguments, self._revision)
        if isinstance(parsed, str):
            self._prompt.fixed(_JSON)
            self._prompt.text(parsed)
            self._prompt.close("json")
            return
        for key, kind, text in parsed:
            self._prompt.open("argument", ("key", key), ("type", kind))
            self._prompt.text(text)
            self._prompt.close("argument")

    def _results(self, run: Sequence[Numbered]) -> None:
        for place, message, name in order_results(run, self._calls, self._results_seen):
            self._results_seen += 1
            self._prompt.open("message", ("role", "tool"), ("tool", name), ("index", str(self._results_seen)))
            self._content(place, message)
            self._prompt.end_message()

    def _content(self, place: int, message: Message) -> None:
        content = message.get("content")
        if isinstance(content, str):
            self._prompt.text(content)
        elif isinstance(content, Sequence):
            for number, part in enumerate(content):
                self._part(part, f"messages[{place}].content[{number}]")
        elif content is not None:
            raise FormatError("content is neither a string nor a list of parts", f"messages[{place}].content")

    def _part(self, part: object, param: str) -> None:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind is None:
            raise FormatError("a content part has no type", param)
        if kind in ("image", "image_url"):
            self._image(part, param)
        elif isinstance(part.get("text"), str):
            self._prompt.text(part["text"])
        else:
            raise FormatError(f"a content part of type {kind!r} is not supported", param)

    def _image(self, part: Message, param: str) -> None:
        size = _image_size(part)
        if size is None:
            self._unsized_images.append(param)
            self._prompt.image_placeholder()
        else:
            self._prompt.image(*size)

    def _closing_notes(self) -> None:
        choice = self._chat.tool_choice
        if self._tools and isinstance(choice, str) and choice in _TOOL_CHOICE:
            self._note("tool-choice", _TOOL_CHOICE[choice])
        wanted = self._chat.response_format
        kind = wanted.get("type") if isinstance(wanted, Mapping) else None
        if wanted and kind in ("json_object", "json_schema"):
            schema = _SCHEMA + _fenced(_schema_of(wanted)) if kind == "json_schema" else ""
            self._note("response-format", _RESPONSE_FORMAT.format(kind) + schema)

    def _ask(self, partial: Numbered | None) -> EncodedChat:
        """The end of the prompt: where the model goes on."""
        thinking, uncounted = self._thinking.on, 0
        if partial:
            thinking = self._continue(*partial)
        elif self._chat.template_kwargs.get("add_generation_prompt", True):
            self._prompt.fixed(_ASSISTANT_THINK if thinking else _ASSISTANT_RESPONSE)
            uncounted = STUB_TOKENS
        constraint = constraint_of(self._chat, self._tools, thinking=thinking, partial=partial is not None)
        return EncodedChat(
            self._prompt.pieces,
            thinking,
            uncounted,
            tools=list(self._tools.values()) or None,
            constraint=constraint,
            unsized_images=self._unsized_images,
        )

    def _continue(self, place: int, message: Message) -> bool:
        """An answer that goes on from a given beginning; true when that ends inside the reasoning."""
        if message.get("tool_calls"):
            raise FormatError("a partial message has no tool calls", f"messages[{place}].tool_calls")
        self._open_answer(message)
        if self._thinking.on:
            reasoning = self._reasoning(place, message)
            self._prompt.text(reasoning)
            if reasoning and not message.get("content"):
                return True
            self._prompt.fixed(_THINK_TO_RESPONSE)
        self._content(place, message)
        return False


def _numbered(path: str, tools: Sequence[Any]) -> dict[str, Any]:
    """Tools by their place in the request."""
    return {f"{path}[{place}]": tool for place, tool in enumerate(tools)}


def _own_tools(message: Message) -> Sequence[Any]:
    tools = message.get("tools")
    return tools if isinstance(tools, Sequence) and not isinstance(tools, str) else ()


def _image_size(part: Message) -> tuple[int, int] | None:
    size = part.get("image_size")
    if isinstance(size, Sequence) and len(size) == 2 and all(isinstance(side, int) for side in size):
        return size[0], size[1]
    return None


def _schema_of(response_format: Mapping[str, Any]) -> Any:
    wrapped = response_format.get("json_schema")
    if not isinstance(wrapped, Mapping):
        return wrapped
    return wrapped.get("schema", wrapped.get("json_schema", wrapped))


def _fenced(value: Any) -> str:
    """JSON with sorted keys, so that the same tools are the same prompt however a client orders them."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return f"```json\n{compact}\n```"
