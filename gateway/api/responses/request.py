"""A request in OpenAI's Responses shape as a chat. Nothing is stored: each brings its whole history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.api.translate import ABSENT, given, missing, passed_on, read_as, read_chat, renamed, unsupported
from gateway.serving.errors import RequestError
from gateway.serving.job import Prepared
from gateway.serving.prepare import Preparer
from gateway.serving.request import Fields

Json = dict[str, Any]
Raw = msgspec.Raw


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None
    detail: str | None = None


class _Item(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None
    summary: list[_Part] = []
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[_Part] = ""


class _Tool(msgspec.Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: Raw = ABSENT
    strict: bool | None = None


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    mode: str = "auto"
    tools: list[_Tool] = []


class _Format(msgspec.Struct):
    type: str
    name: str | None = None
    schema: Raw = ABSENT
    strict: bool | None = None
    description: str | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


class ResponsesBody(msgspec.Struct):
    """What of a body the gateway acts on by itself."""

    model: str | None = None
    input: str | list[_Item] | None = None
    instructions: str | None = None
    max_output_tokens: Raw = ABSENT
    tools: Raw = ABSENT
    tool_choice: Raw = ABSENT
    text: Raw = ABSENT
    reasoning: Raw = ABSENT
    include: list[str] | None = None
    top_logprobs: Raw = ABSENT
    stream: bool | None = None
    stream_options: Json | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    truncation: str | None = None
    max_tool_calls: int | None = None
    context_management: Any = None


SHAPES: dict[str, Any] = {
    "tools": list[_Tool],
    "tool_choice": str | _Choice,
    "text": _Text,
    "reasoning": _Reasoning,
}
"""Of the fields that an answer repeats as they were spelled."""
ECHOED = ("temperature", "top_p", "metadata", "user", "parallel_tool_calls", "service_tier")
"""Fields of the chat that an answer repeats."""
KEPT = ("chat_template_kwargs", "structured_outputs", "parallel_tool_calls")
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_STATEFUL = {
    "store": "answers are not stored",
    "background": "answers are not stored",
    "previous_response_id": "answers are not stored: send the whole history as `input`",
    "conversation": "answers are not stored: send the whole history as `input`",
    "prompt": "prompts are not stored",
    "context_management": "send the history that is wanted",
}
_LOGPROBS = "message.output_text.logprobs"
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def read_responses(body: bytes, *, strict: bool = False) -> Fields:
    """The chat that a Responses request asks for; `asked` among its values is what the answer repeats."""
    asked = read_as(body, ResponsesBody)
    if asked.input is None:
        raise missing("input")
    for name, reason in _STATEFUL.items():
        if getattr(asked, name):
            raise unsupported(name, reason)
    if asked.truncation not in (None, "disabled"):
        raise unsupported("truncation", "a prompt is served whole or not at all")
    rest = msgspec.json.decode(body, type=dict[str, Raw])
    chat = passed_on(rest, ResponsesBody.__struct_fields__, KEPT)
    chat |= {
        "model": asked.model,
        "messages": [*_instructions(asked.instructions), *_messages(asked.input)],
        "max_tokens": given(asked.max_output_tokens),
        "stream": asked.stream,
        "stream_options": {"include_usage": True} if asked.stream else None,
        "top_logprobs": given(asked.top_logprobs),
        "logprobs": True
        if _LOGPROBS in (asked.include or ()) or given(asked.top_logprobs) is not None
        else None,
    }
    chat |= _tools(asked) | _text(given(asked.text))
    if given(asked.reasoning) is not None:
        chat["reasoning_effort"] = read_as(asked.reasoning, _Reasoning, "reasoning").effort
    fields = read_chat(chat, NAMES, strict=strict)
    fields.values["asked"] = _repeated(asked, rest)
    return fields


async def prepare_responses(preparer: Preparer, fields: Fields, request_id: str, started: float) -> Prepared:
    try:
        return await preparer.chat(fields, request_id, started)
    except RequestError as error:
        raise renamed(error, NAMES) from None


def _repeated(asked: ResponsesBody, rest: dict[str, Raw]) -> Json:
    """What of the request its answer shows again."""
    shown: Json = {name: rest.get(name) for name in ECHOED}
    own = ("instructions", "max_output_tokens", "max_tool_calls", "reasoning", "top_logprobs")
    shown |= {name: getattr(asked, name) for name in own}
    shown["parallel_tool_calls"] = shown["parallel_tool_calls"] or True
    shown["metadata"] = shown["metadata"] or {}
    shown["text"] = given(asked.text) or {"format": {"type": "text"}}
    shown["tools"] = given(asked.tools) or []
    shown["tool_choice"] = given(asked.tool_choice) or "auto"
    return shown


def _instructions(text: str | None) -> list[Json]:
    return [{"role": "system", "content": text}] if text else []


class _Turn:
    """What the model said at once: items of one turn are one message of a chat."""

    def __init__(self) -> None:
        self.message: Json = {}

    def take(self) -> list[Json]:
        said, self.message = self.message, {}
        return [{"role": "assistant", "content": "", **said}] if said else []

    def goes_on_with(self, kind: str) -> bool:
        """Reasoning begins a turn, and there is one text in it, before its calls."""
        follows = {"reasoning_content": (), "content": ("reasoning_content",)}
        return all(key in follows.get(kind, self.message) for key in self.message)


def _messages(items: str | list[_Item]) -> Iterator[Json]:
    if isinstance(items, str):
        yield {"role": "user", "content": items}
        return
    turn = _Turn()
    for place, item in enumerate(items):
        path = f"input[{place}]"
        kind = item.type or ("message" if item.role else "")
        if kind == "message" and item.role == "assistant":
            if not turn.goes_on_with("content"):
                yield from turn.take()
            turn.message["content"] = _plain(item.content, f"{path}.content")
        elif kind == "reasoning":
            if not turn.goes_on_with("reasoning_content"):
                yield from turn.take()
            turn.message["reasoning_content"] = _plain(item.content or item.summary, f"{path}.content")
        elif kind == "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            calls = turn.message.setdefault("tool_calls", [])
            calls.append({"id": item.call_id, "type": "function", "function": function})
        else:
            yield from turn.take()
            yield _other(kind, item, path)
    yield from turn.take()


def _other(kind: str, item: _Item, path: str) -> Json:
    if kind == "message":
        return {"role": item.role, "content": _content(item.content or "", f"{path}.content")}
    if kind == "function_call_output":
        content = _content(item.output, f"{path}.output")
        return {"role": "tool", "tool_call_id": item.call_id, "content": content}
    reason = (
        "answers are not stored"
        if kind == "item_reference"
        else f"an item of type {kind[:40]!r} is not known"
    )
    raise unsupported(path, reason)


def _content(content: str | list[_Part], path: str) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return [_part(part, f"{path}[{number}]") for number, part in enumerate(content)]


def _part(part: _Part, path: str) -> Json:
    if part.type in _TEXTS:
        return {"type": "text", "text": part.text}
    if part.type == "refusal":
        return {"type": "text", "text": part.refusal}
    if part.type == "input_image" and part.image_url is not None:
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    raise unsupported(path, f"a part of type {part.type[:40]!r} is not supported")


def _plain(content: str | Sequence[_Part] | None, path: str) -> str:
    """Text alone: what a model says."""
    if isinstance(content, str):
        return content
    parts = _content(list(content or ()), path)
    return "".join(part.get("text", "") for part in parts if isinstance(part, dict))


def _tools(asked: ResponsesBody) -> Json:
    tools = read_as(asked.tools, list[_Tool], "tools") if given(asked.tools) is not None else []
    choice = given(asked.tool_choice) and read_as(asked.tool_choice, str | _Choice, "tool_choice")  # type: ignore[arg-type]
    if isinstance(choice, _Choice):
        if choice.type == "allowed_tools":
            names = {tool.name for tool in choice.tools}
            tools = [tool for tool in tools if tool.name in names]
            choice = choice.mode
        elif choice.type == "function":
            choice = {"type": "function", "function": {"name": choice.name or ""}}
        else:
            raise unsupported("tool_choice", "must be a word, a function or allowed tools")
    return {"tools": [_tool(tool, place) for place, tool in enumerate(tools)] or None, "tool_choice": choice}


def _tool(tool: _Tool, place: int) -> Json:
    if tool.type != "function":
        raise unsupported(f"tools[{place}].type", "only functions, which the client runs, are supported")
    function: Json = {
        "name": tool.name,
        "parameters": given(tool.parameters) or {"type": "object", "properties": {}},
    }
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _text(text: Raw | None) -> Json:
    wanted = None if text is None else read_as(text, _Text, "text").format
    if wanted is None:
        return {}
    if wanted.type != "json_schema":
        return {"response_format": {"type": wanted.type}}
    schema: Json = {"name": wanted.name, "schema": given(wanted.schema)}
    if wanted.strict is not None:
        schema["strict"] = wanted.strict
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
