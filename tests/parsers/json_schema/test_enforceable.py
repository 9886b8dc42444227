from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from parsers.json_schema.enforceable import find_unsupported
from tests.parsers.json_schema.test_validator import SCHEMAS

FINE: list[Any] = [
    True,
    {},
    {"type": ["string", "null"], "description": "x", "default": None, "x-own": 1},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}},
    {"type": "object", "additionalProperties": {"type": "string"}, "required": ["a"], "minProperties": 1},
    {"type": "object", "patternProperties": {"^a": {}}},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 3, "uniqueItems": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": False},
    {"type": "string", "pattern": "^(?:a|b)+$"},
    {"type": "string", "minLength": 1, "maxLength": 9},
    {"type": "string", "format": "date-time"},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 1.5},
    {"anyOf": [{"enum": ["a"]}, {"allOf": [{"type": "null"}]}]},
]


@pytest.mark.parametrize("schema", FINE)
def test_what_a_grammar_keeps_to_is_fine(schema: Any) -> None:
    assert find_unsupported(schema, "s") is None


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ("x", "s", "a schema is an object"),
        ({"type": "integer", "multipleOf": 2}, "s.multipleOf", "cannot be enforced"),
        ({"not": {}}, "s.not", "cannot be enforced"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "s.properties.a.items.uniqueItems", ""),
        ({"anyOf": [{}, {"contains": {}}]}, "s.anyOf[1].contains", "cannot be enforced"),
        ({"allOf": [{}, {}]}, "s.allOf", "several at once"),
        ({"type": "foo"}, "s.type", "no type 'foo'"),
        ({"type": []}, "s.type", "no type"),
        ({"format": "color"}, "s.format", "'color'"),
        ({"pattern": "^(?=a)b"}, "s.pattern", "lookaround"),
        ({"pattern": "(a)\\1"}, "s.pattern", "references"),
        ({"pattern": "a", "maxLength": 3}, "s.pattern", "with a length"),
        ({"$ref": "http://x/y"}, "s.$ref", "inside the schema"),
        ({"$ref": "#/$defs/a"}, "s.$ref", "nothing at #/$defs/a"),
        ({"patternProperties": {"a": {}, "b": {}}}, "s.patternProperties", "several patterns"),
        ({"patternProperties": {"a": {}}, "properties": {}}, "s.patternProperties", "with properties"),
        ({"propertyNames": {}, "properties": {}}, "s.propertyNames", "with properties"),
        ({"properties": []}, "s.properties", "it is an object"),
        ({"required": "a"}, "s.required", "it is a list"),
        ({"minItems": True}, "s.minItems", "it is a number"),
        ({"$defs": {"a": {"if": {}}}}, "s.$defs.a.if", "cannot be enforced"),
    ],
)
def test_what_it_would_leave_out_is_named(schema: Any, path: str, reason: str) -> None:
    found = find_unsupported(schema, "s")
    assert found is not None
    assert found.path == path
    assert reason in found.reason


def test_deep_nesting_is_named() -> None:
    schema: Any = {}
    for _ in range(80):
        schema = {"items": schema}
    found = find_unsupported(schema, "s")
    assert found is not None
    assert "levels deep" in found.reason


@settings(max_examples=300)
@given(SCHEMAS)
def test_anything_can_be_looked_at(schema: Any) -> None:
    find_unsupported(schema, "s")
