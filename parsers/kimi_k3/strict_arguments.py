"""A strict tool's parameters as Kimi-K3's argument elements, where their schema can be said so.

A string argument is raw text, so what a schema says of a string's inside cannot be kept to; enumerations
can. An argument's element names the type of its value, so a union is several elements to choose from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parsers.kimi_k3.markers import MARKERS
from parsers.kimi_k3.tool_history import type_of
from parsers.structural_tag import Format, const, either, json_value

_XTML_TYPES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "object",
    "array": "array",
}
_ROOT_KEYWORDS = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"}
_STRING_RULES = {"minLength", "maxLength", "pattern", "format"}
_MAX_HOPS = 8
"""References and unions that are followed, one inside another."""

Alternative = tuple[str, Format | None]
"""An element's type and content; None is any text."""


class Element(NamedTuple):
    key: str
    required: bool
    alternatives: Sequence[Alternative]


def argument_elements(parameters: Any) -> list[Element] | None:
    """The elements in the order of the properties; None when elements cannot say it."""
    if not isinstance(parameters, Mapping) or not parameters.keys() <= _ROOT_KEYWORDS | _NOTES:
        return None
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    if parameters.get("type", "object") != "object" or not set(required) <= properties.keys():
        return None
    if not properties and parameters.get("additionalProperties", True) is not False:
        return None
    definitions = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
    elements = []
    for key, schema in properties.items():
        alternatives = _alternatives(schema, definitions, _MAX_HOPS)
        if not alternatives:
            return None
        elements.append(Element(key, key in required, alternatives))
    return elements


def _alternatives(schema: Any, definitions: Mapping[str, Any], hops: int) -> list[Alternative] | None:
    schema = _resolved(schema, definitions)
    if not isinstance(schema, Mapping) or not hops:
        return None
    rules = schema.keys() - _NOTES
    if "enum" in rules or "const" in rules:
        return _of_values(schema["enum"] if "enum" in rules else [schema["const"]])
    if rules in ({"anyOf"}, {"oneOf"}):
        (union,) = rules
        return _joined([_alternatives(each, definitions, hops - 1) for each in schema[union]])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _joined([_alternatives({**schema, "type": each}, definitions, hops - 1) for each in kind])
    if kind == "string":
        return None if rules & _STRING_RULES else [("string", None)]
    # A reference to the whole would mean this property alone.
    if kind is None or '"$ref": "#"' in json.dumps(schema):
        return None
    return [(_XTML_TYPES[kind], json_value({**schema, **definitions}, MARKERS))]


def _of_values(values: Sequence[Any]) -> list[Alternative] | None:
    """Enumerated values, by the type that their element names."""
    by_type: dict[str, list[Any]] = {}
    for value in values:
        by_type.setdefault(type_of(value), []).append(value)
    if "" in by_type.get("string", ()):
        return None
    return [
        (kind, either([const(each) for each in some]) if kind == "string" else json_value({"enum": some}))
        for kind, some in by_type.items()
    ]


def _joined(several: Sequence[list[Alternative] | None]) -> list[Alternative] | None:
    joined: list[Alternative] = []
    for each in several:
        if each is None:
            return None
        joined += each
    return joined


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A reference's target; a schema that refers to itself is left as it is."""
    for _ in range(_MAX_HOPS):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        target: Any = definitions
        for name in str(schema["$ref"]).split("/")[1:]:
            target = target.get(name) if isinstance(target, Mapping) else None
        schema = target
    return None
