"""Checks of the fields that are objects with rules of their own: tools, tool_choice, response_format.

The rules are those of OpenAI and of Moonshot's vendor contract where both have one; what a schema may say
is the model format's business.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.api.checks import MemberError, Schema, described, typed

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")
_RULE = "must have 1 to 256 of the characters A-Z a-z 0-9 _ . : / -"

_objects = typed(list[Any], "a list of tool objects")
_object = typed(dict[str, Any], "an object")
_choice = typed(str | dict[str, Any], "a string or an object")
_flags = typed(dict[str, Any], "an object")


def tools(raw: bytes) -> list[dict[str, Any]]:
    """Function tools, at least one, each name once."""
    value: list[Any] = _objects(raw)
    if not value:
        raise ValueError("must not be empty; leave it out for no tools")
    check_tools(value, set())
    return value


def check_tools(value: list[Any], names: set[str]) -> None:
    """Adds their names to `names`, which none of them may have yet. Raises MemberError."""
    for place, tool in enumerate(value):
        name = _tool_name(tool, f"[{place}]")
        if name in names:
            raise MemberError(f"names the tool {name!r} twice", f"[{place}].function.name")
        names.add(name)


def _tool_name(tool: Any, path: str) -> str:
    function = _member(tool, "function", dict, "an object", path)
    if tool.get("type") != "function":
        raise MemberError("must be 'function': other tools are not supported", f"{path}.type")
    path += ".function"
    name = _member(function, "name", str, "a string", path)
    if not _TOOL_NAME.fullmatch(name):
        raise MemberError(_RULE, f"{path}.name")
    for key, kind, what in _OPTIONAL:
        if function.get(key) is not None:
            _member(function, key, kind, what, path)
    return str(name)


_OPTIONAL = (
    ("description", str, "a string"),
    ("parameters", dict, "a JSON schema, which is an object"),
    ("strict", bool, "a boolean"),
)


def tool_choice(raw: bytes) -> str | dict[str, Any]:
    """A word, or the name of one function."""
    value: str | dict[str, Any] = _choice(raw)
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            raise ValueError("must be auto, none or required, or name a function")
        return value
    if value.get("type") != "function":
        raise MemberError("must be 'function': other choices are not supported", ".type")
    function = _member(value, "function", dict, "an object", "")
    _member(function, "name", str, "a string", ".function")
    return value


def response_format(raw: bytes) -> dict[str, Any]:
    """`text`, `json_object`, or `json_schema` with a name and a schema."""
    value: dict[str, Any] = _object(raw)
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise MemberError("must be text, json_object or json_schema", ".type")
    if kind == "json_schema":
        wrapped = _member(value, "json_schema", dict, "an object", "")
        name = _member(wrapped, "name", str, "a string", ".json_schema")
        if not name:
            raise MemberError("must not be empty", ".json_schema.name")
        _member(wrapped, "schema", dict, "a JSON schema, which is an object", ".json_schema")
        if wrapped.get("strict") is not None:
            _member(wrapped, "strict", bool, "a boolean", ".json_schema")
    return value


def stream_options(raw: bytes) -> dict[str, Any]:
    """An object of switches."""
    value: dict[str, Any] = _flags(raw)
    for name, switch in value.items():
        if not isinstance(switch, bool | None):
            raise MemberError("must be a boolean", f".{name[:64]}")
    return value


def thinking(raw: bytes) -> bool | dict[str, Any]:
    """A switch, or Moonshot's object."""
    value: bool | dict[str, Any] = _thinking(raw)
    return value


_thinking = typed(bool | dict[str, Any], "a boolean or an object")


def _member(holder: Any, key: str, kind: type, what: str, path: str) -> Any:
    if not isinstance(holder, dict):
        raise MemberError("must be an object", path)
    if key not in holder:
        raise MemberError("is required", f"{path}.{key}")
    if not isinstance(holder[key], kind):
        raise MemberError(f"must be {what}", f"{path}.{key}")
    return holder[key]


def metadata(raw: bytes) -> dict[str, str]:
    """OpenAI's: at most 16 pairs of text."""
    try:
        value = msgspec.json.decode(raw, type=dict[str, str])
    except msgspec.ValidationError:
        raise ValueError("must be an object of strings") from None
    if len(value) > 16:
        raise ValueError(f"must have at most 16 pairs, has {len(value)}")
    for key, each in value.items():
        if len(key) > 64 or len(each) > 512:
            raise ValueError("must have keys of at most 64 and values of at most 512 characters")
    return value


_NAME: Schema = {"type": "string", "pattern": f"^{_TOOL_NAME.pattern}$"}
_FUNCTION: Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _NAME,
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
}
_TOOL: Schema = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
}
_NAMED: Schema = _TOOL | {
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    }
}
_JSON_SCHEMA: Schema = {
    "type": "object",
    "required": ["name", "schema"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
}
described(tools, {"type": "array", "minItems": 1, "items": _TOOL})
described(tool_choice, {"anyOf": [{"enum": ["auto", "none", "required"]}, _NAMED]})
described(
    response_format,
    {
        "anyOf": [
            {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"enum": ["text", "json_object"]}},
            },
            {
                "type": "object",
                "required": ["type", "json_schema"],
                "properties": {"type": {"const": "json_schema"}, "json_schema": _JSON_SCHEMA},
            },
        ]
    },
)
described(stream_options, {"type": "object", "additionalProperties": {"type": ["boolean", "null"]}})
described(thinking, {"anyOf": [{"type": "boolean"}, {"type": "object"}]})
described(
    metadata,
    {
        "type": "object",
        "maxProperties": 16,
        "propertyNames": {"maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 512},
    },
)
