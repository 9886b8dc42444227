"""A request in Anthropic's Messages shape as an OpenAI chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.api.translate import ABSENT, given, missing, passed_on, read_as, read_chat, unsupported
from gateway.serving.request import Fields

Json = dict[str, Any]
Raw = msgspec.Raw


class _Source(msgspec.Struct):
    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Raw = msgspec.field(default_factory=lambda: Raw(b"{}"))
    tool_use_id: str = ""
    content: str | list[_Block] | None = None
    source: _Source | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: Raw = ABSENT
    strict: bool | None = None


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(msgspec.Struct):
    type: str
    budget_tokens: int | None = None


class _Format(msgspec.Struct):
    type: str
    schema: Raw = ABSENT


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


class MessagesBody(msgspec.Struct):
    """What of a body the gateway acts on by itself."""

    model: str | None = None
    messages: list[_Message] | None = None
    system: str | list[_Block] | None = None
    max_tokens: Raw = ABSENT
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    mcp_servers: list[Json] | None = None
    container: Any = None


IGNORED = (
    "metadata",
    "service_tier",
    "cache_control",
    "context_management",
    "diagnostics",
    "inference_geo",
    "speed",
    "betas",
    "user_profile_id",
    "workspace_id",
    "anthropic_version",
)
"""Fields that mean nothing here: prefixes are cached without being marked."""
KEPT = ("chat_template_kwargs", "structured_outputs")
NAMES = {"stop": "stop_sequences", "reasoning_effort": "output_config.effort"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_messages(body: bytes, *, strict: bool = False) -> Fields:
    """The chat that a Messages request asks for. Raises RequestError."""
    asked = read_as(body, MessagesBody)
    if given(asked.max_tokens) is None:
        raise missing("max_tokens")
    return _read(body, asked, strict=strict)


def read_count(body: bytes, *, strict: bool = False) -> Fields:
    """The same of a request whose tokens are only counted."""
    return _read(body, read_as(body, MessagesBody), strict=strict)


def _read(body: bytes, asked: MessagesBody, *, strict: bool) -> Fields:
    if asked.messages is None:
        raise missing("messages")
    for name, value in (("mcp_servers", asked.mcp_servers), ("container", asked.container)):
        if value:
            raise unsupported(name, "tools run at the client")
    rest = msgspec.json.decode(body, type=dict[str, Raw])
    chat = passed_on(rest, (*MessagesBody.__struct_fields__, *IGNORED), KEPT)
    chat |= {
        "model": asked.model,
        "messages": [*_system(asked.system), *_messages(asked.messages)],
        "max_tokens": given(asked.max_tokens),
        "stop": asked.stop_sequences or None,
        "stream": asked.stream,
        "stream_options": {"include_usage": True} if asked.stream else None,
        "tools": [_tool(tool, place) for place, tool in enumerate(asked.tools or ())] or None,
    }
    chat |= _choice(asked.tool_choice) | _thinking(asked.thinking) | _output(asked.output_config)
    return read_chat(chat, NAMES, strict=strict)


def _system(system: str | list[_Block] | None) -> list[Json]:
    if not system:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    return [{"role": "system", "content": _parts(system, "system")}]


def _messages(messages: Sequence[_Message]) -> Iterator[Json]:
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        last = place == len(messages) - 1
        if message.role == "assistant":
            yield _assistant(message, path, last=last)
        elif message.role == "user":
            yield from _user(message, path)
        elif message.role == "system":
            yield from _system(message.content)
        else:
            raise unsupported(f"{path}.role", "must be user or assistant")


def _user(message: _Message, path: str) -> Iterator[Json]:
    """What the user says, and what tools answered, in their order."""
    if isinstance(message.content, str):
        yield {"role": "user", "content": message.content}
        return
    parts: list[Json] = []
    for number, block in enumerate(message.content):
        at = f"{path}.content[{number}]"
        if block.type != "tool_result":
            parts.append(_part(block, at))
            continue
        if parts:
            yield {"role": "user", "content": parts}
            parts = []
        result = block.content or ""
        content = result if isinstance(result, str) else _parts(result, f"{at}.content")
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
    if parts:
        yield {"role": "user", "content": parts}


def _assistant(message: _Message, path: str, *, last: bool) -> Json:
    blocks = [_Block("text", text=message.content)] if isinstance(message.content, str) else message.content
    said: Json = {"role": "assistant", "content": "".join(b.text for b in blocks if b.type == "text")}
    if thought := "".join(block.thinking for block in blocks if block.type == "thinking"):
        said["reasoning_content"] = thought
    calls = [_call(block) for block in blocks if block.type == "tool_use"]
    for number, block in enumerate(blocks):
        if block.type not in ("text", "thinking", "redacted_thinking", "tool_use"):
            raise unsupported(
                f"{path}.content[{number}]", f"a block of type {block.type[:40]!r} is not known"
            )
    if calls:
        said["tool_calls"] = calls
    elif last:
        said["partial"] = True  # the answer goes on from it
    return said


def _call(block: _Block) -> Json:
    function = {"name": block.name, "arguments": bytes(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _parts(blocks: Sequence[_Block], path: str) -> list[Json]:
    return [_part(block, f"{path}[{number}]") for number, block in enumerate(blocks)]


def _part(block: _Block, path: str) -> Json:
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type == "image" and (source := block.source) is not None:
        if source.type == "url":
            return {"type": "image_url", "image_url": {"url": source.url}}
        if source.type == "base64":
            return {
                "type": "image_url",
                "image_url": {"url": f"data:{source.media_type};base64,{source.data}"},
            }
    raise unsupported(path, f"a block of type {block.type[:40]!r} is not supported")


def _tool(tool: _Tool, place: int) -> Json:
    if tool.type not in (None, "custom"):
        raise unsupported(f"tools[{place}].type", "only tools that the client runs are supported")
    function: Json = {"name": tool.name, "parameters": given(tool.input_schema) or {"type": "object"}}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: _Choice | None) -> Json:
    if choice is None:
        return {}
    if choice.type == "tool":
        if choice.name is None:
            raise missing("tool_choice.name")
        said: Any = {"type": "function", "function": {"name": choice.name}}
    elif choice.type in _CHOICES:
        said = _CHOICES[choice.type]
    else:
        raise unsupported("tool_choice.type", "must be auto, any, tool or none")
    return {"tool_choice": said} | (
        {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    )


def _thinking(thinking: _Thinking | None) -> Json:
    if thinking is None or thinking.type == "adaptive":
        return {}
    if thinking.type not in ("enabled", "disabled"):
        raise unsupported("thinking.type", "must be enabled, disabled or adaptive")
    return {"thinking": {"type": thinking.type}}


def _output(config: _OutputConfig | None) -> Json:
    if config is None:
        return {}
    said: Json = {"reasoning_effort": config.effort}
    if config.format is not None:
        if config.format.type != "json_schema" or given(config.format.schema) is None:
            raise unsupported("output_config.format", "must be a json_schema with a schema")
        schema = {"name": "output", "schema": config.format.schema, "strict": True}
        said["response_format"] = {"type": "json_schema", "json_schema": schema}
    return said
