"""Past tool calls and their results, as a prompt needs them.

Histories come from many clients and from truncated answers: arguments that are no JSON object are kept
as they are, never refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from json.decoder import JSONDecoder
from typing import Any, Literal, NamedTuple

from parsers.base import FormatError

Revision = Literal["a", "b"]
Message = Mapping[str, Any]
Numbered = tuple[int, Message]
"""A message with its place in the request, for error messages."""

# Control characters in strings are accepted, as the model's own encoder does.
_decode_value = JSONDecoder(strict=False).raw_decode
_SPACE = " \t\n\r"


class Argument(NamedTuple):
    """One `argument` element of a call."""

    key: str
    type: str
    text: str


def parse_arguments(arguments: object, revision: Revision) -> list[Argument] | str:
    """The elements of a past call's arguments; a string is the raw text of a `json` element.

    Revision b keeps the literal text of each value when the arguments are a JSON string; revision a, and
    both for a mapping, write the values anew.
    """
    if arguments is None or arguments == "":
        return []
    if isinstance(arguments, Mapping):
        return [Argument(str(key), type_of(value), _text_of(value)) for key, value in arguments.items()]
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    return _parse_literal(arguments) if revision == "b" else _parse_anew(arguments)


def _parse_anew(text: str) -> list[Argument] | str:
    if text.isspace():
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parse_arguments(value, "a") if isinstance(value, dict) else text


def _parse_literal(text: str) -> list[Argument] | str:
    try:
        return list(_members(text))
    except (ValueError, IndexError, RecursionError):
        return text


def _members(text: str) -> Iterator[Argument]:
    """The members of a JSON object, each value as it is spelled; what follows the object is ignored."""
    at = _expect(text, _skip_space(text, 0), "{")
    if text[at] == "}":
        return
    while True:
        key, at = _decode_value(text, at)
        if not isinstance(key, str):
            raise ValueError("a key is a string")
        start = _expect(text, _skip_space(text, at), ":")
        value, at = _decode_value(text, start)
        yield Argument(key, type_of(value), value if isinstance(value, str) else text[start:at])
        at = _skip_space(text, at)
        if text[at] == "}":
            return
        at = _expect(text, at, ",")


def _skip_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, char: str) -> int:
    """The place of what comes after `char` and space."""
    if text[at] != char:
        raise ValueError(f"expected {char} at {at}")
    return _skip_space(text, at + 1)


def type_of(value: object) -> str:
    """The `type` attribute of a value. Booleans are numbers to Python, not to the model."""
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Call(NamedTuple):
    """What a result must know of the call it answers."""

    id: str | None
    name: str


def read_calls(message: Message, place: int) -> list[tuple[Call, object]]:
    """Calls of an assistant message with their arguments. Raises FormatError for a call without a name."""
    calls = message.get("tool_calls") or []
    param = f"messages[{place}].tool_calls"
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise FormatError("tool_calls is not a list", param)
    return [_read_call(call, f"{param}[{number}]") for number, call in enumerate(calls)]


def _read_call(call: object, param: str) -> tuple[Call, object]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(name, str):
        raise FormatError("a tool call has no function name", f"{param}.function.name")
    call_id = call.get("id")
    return Call(None if call_id is None else str(call_id), name), function.get("arguments")


class Result(NamedTuple):
    """A tool result, named and in the order of the calls."""

    place: int
    message: Message
    name: str


def order_results(run: Sequence[Numbered], calls: Sequence[Call], seen: int) -> list[Result]:
    """Consecutive tool messages in the order of their calls, when every one names a call.

    `seen` results of the same assistant message came before this run. A name is the matched call's, else
    the message's own, else that of the call in the same place. Raises FormatError when there is none.
    """
    positions = _positions(calls)
    matched = [
        (positions.get(_first(message, "tool_call_id", "id")), place, message) for place, message in run
    ]
    if all(position is not None for position, _, _ in matched):
        matched.sort(key=lambda result: result[0] or 0)
    return [
        Result(place, message, _name(message, place, position, calls, seen + offset))
        for offset, (position, place, message) in enumerate(matched)
    ]


def _positions(calls: Sequence[Call]) -> dict[str | None, int]:
    positions: dict[str | None, int] = {}
    for position, call in enumerate(calls):
        if call.id is not None:
            positions.setdefault(call.id, position)
    for position, call in enumerate(calls):
        # Engines also hand out ids of this form, which clients send back whatever the call's id is.
        positions.setdefault(f"{call.name}:{position}", position)
    return positions


def _first(message: Message, *names: str) -> str | None:
    """The first of these members that says something."""
    return next((str(message[name]) for name in names if message.get(name) not in (None, "")), None)


def _name(message: Message, place: int, position: int | None, calls: Sequence[Call], order: int) -> str:
    if position is not None:
        return calls[position].name
    own = _first(message, "tool", "name")
    if own is not None:
        return own
    if order < len(calls):
        return calls[order].name
    raise FormatError("a tool message answers no known tool call", f"messages[{place}].tool_call_id")
