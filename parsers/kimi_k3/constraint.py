"""What a worker must keep a Kimi-K3 answer to, as a structural tag over the whole of it.

The tag begins with the first generated token. Reasoning is part of it and free, so nothing depends on
whether the worker knows when reasoning ends; a worker that waits for that end anyway finds the rest of the
tag right, because the reasoning is optional. Structure is control tokens by id; text between them is any
other token, markers that are spelled out included.

Tools: what is called is kept to the declared names where a call is required, named or a tool is strict. The
arguments of a strict tool are kept to its schema, as elements in the order of its properties where that can
be said, else as one `json` element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parsers.base import Chat, Constraint, FormatError
from parsers.constraints import check_schema, requested
from parsers.kimi_k3.markers import (
    CLOSE_ID,
    END_OF_MSG_ID,
    MARKERS,
    OPEN_ID,
    SEP_ID,
    STOP_IDS,
    escape_attribute,
)
from parsers.kimi_k3.strict_arguments import argument_elements
from parsers.structural_tag import (
    Format,
    any_tokens,
    const,
    either,
    grammar,
    json_value,
    optional,
    plus,
    regex,
    sequence,
    star,
    structural_tag,
    token,
)

ANY_TEXT = any_tokens(sorted({*STOP_IDS, END_OF_MSG_ID, OPEN_ID, CLOSE_ID, SEP_ID}))


def constraint_of(
    chat: Chat, tools: Mapping[str, Any], *, thinking: bool, partial: bool
) -> Constraint | None:
    """`tools` are all that the chat declares, by place; `thinking` says that the prompt ends in reasoning.

    Raises FormatError, with the field's name, for what cannot be enforced.
    """
    if not tools and chat.response_format is None and chat.structured_outputs is None:
        return None
    wanted = requested(chat)
    if wanted is not None and partial:
        raise FormatError("a partial message's answer cannot be constrained", "response_format")
    calls = _calls(chat, tools)
    if wanted is None and not (calls.must or any(tool.strict for tool in calls.tools)):
        return None
    start = [optional(sequence(ANY_TEXT, *closing("think"))), *opening("response")] if thinking else []
    return Constraint(
        "structural_tag", structural_tag(sequence(*start, *_answer(wanted, calls), *closing("message")))
    )


def opening(name: str) -> list[Format]:
    return [token(OPEN_ID), const(name), token(SEP_ID)]


def closing(name: str) -> list[Format]:
    return [token(CLOSE_ID), const(name), token(SEP_ID)]


class _Tool(NamedTuple):
    name: str
    strict: bool
    parameters: Any
    path: str


class _Calls(NamedTuple):
    """Which tools may be called."""

    tools: Sequence[_Tool]
    must: bool = False
    several: bool = True


def _calls(chat: Chat, declared: Mapping[str, Any]) -> _Calls:
    choice = chat.tool_choice
    tools = [_read_tool(tool, path) for path, tool in declared.items()]
    tools = [tool for tool in tools if tool.name]
    if not tools or choice == "none":
        return _Calls(())
    if isinstance(choice, Mapping):
        name = _named(choice)
        chosen = [tool for tool in tools if tool.name == name]
        if not chosen:
            raise FormatError(f"no tool {name!r} is declared", "tool_choice.function.name")
        return _Calls(chosen[:1], must=True, several=False)
    return _Calls(tools, must=choice == "required", several=chat.parallel_tool_calls is not False)


def _named(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise FormatError("tool_choice is a word or names a function", "tool_choice")
    return name


def _read_tool(tool: Any, path: str) -> _Tool:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    return _Tool(
        name if isinstance(name, str) else "",
        function.get("strict") is True,
        function.get("parameters"),
        f"{path}.function.parameters",
    )


def _answer(wanted: Constraint | None, calls: _Calls) -> list[Format]:
    """What comes after the response's opener, up to the message's end."""
    ended = closing("response")
    content = ANY_TEXT if wanted is None else _content(wanted)
    if not calls.tools:
        return [content, *ended]
    called = _tools_channel(calls)
    if wanted is None:
        return [content, *ended, *(called if calls.must else [optional(sequence(*called))])]
    if calls.must:
        return [optional(content), *ended, *called]
    # Without a call the response must be there.
    said = sequence(content, *ended, optional(sequence(*called)))
    return [either([said, sequence(*ended, *called)])]


def _content(wanted: Constraint) -> Format:
    match wanted.kind:
        case "json":
            return json_value(wanted.value, MARKERS)
        case "json_object":
            return json_value({"type": "object"}, MARKERS)
        case "regex":
            return regex(wanted.value)
        case "choice":
            return either([const(choice) for choice in wanted.value])
        case "grammar":
            return grammar(wanted.value)
        case "structural_tag":
            return dict(wanted.value["format"])


def _tools_channel(calls: _Calls) -> list[Format]:
    call = either([_call(tool) for tool in calls.tools])
    return [*opening("tools"), plus(call) if calls.several else call, *closing("tools")]


def _call(tool: _Tool) -> Format:
    return sequence(
        token(OPEN_ID),
        const(f'call tool="{escape_attribute(tool.name)}" index="'),
        regex("[0-9]{1,5}"),
        const('"'),
        token(SEP_ID),
        *_arguments(tool),
        *closing("call"),
    )


def _arguments(tool: _Tool) -> list[Format]:
    if not tool.strict or tool.parameters is None:
        return [
            star(
                sequence(
                    token(OPEN_ID), const("argument"), ANY_TEXT, token(SEP_ID), ANY_TEXT, *closing("argument")
                )
            )
        ]
    check_schema(tool.parameters, tool.path)
    elements = argument_elements(tool.parameters)
    if elements is None:
        head = [token(OPEN_ID), const('json type="object"'), token(SEP_ID)]
        return [*head, json_value(tool.parameters, MARKERS), *closing("json")]
    return [
        element if needed else optional(element)
        for needed, element in (
            (needed, either([_argument(key, *each) for each in alternatives]))
            for key, needed, alternatives in elements
        )
    ]


def _argument(key: str, kind: str, content: Format | None) -> Format:
    head = const(f'argument key="{escape_attribute(key)}" type="{kind}"')
    inside = ANY_TEXT if content is None else content
    return sequence(token(OPEN_ID), head, token(SEP_ID), inside, *closing("argument"))
