from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.json_schema.validator import Violation, first_violation

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYWORDS = st.sampled_from(
    [
        *("type", "enum", "const", "required", "properties", "additionalProperties", "items", "prefixItems"),
        *("anyOf", "oneOf", "allOf", "not", "if", "then", "$ref", "minimum", "multipleOf", "maxLength"),
        *("minItems", "uniqueItems", "propertyNames", "minProperties", "dependentRequired", "unknown"),
    ]
)
SCHEMAS = st.recursive(
    JSON,
    lambda inner: st.dictionaries(KEYWORDS, inner | st.lists(inner, max_size=2), max_size=4),
    max_leaves=8,
)
NESTED = {"properties": {"a": {"items": {"type": "integer"}}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer"}, [1, -3, 2.0], [1.5, True, "1", None]),
        ({"type": "number"}, [1, 1.5], [False, "1"]),
        ({"type": "boolean"}, [True], [1, 0]),
        ({"type": ["string", "null"]}, ["", None], [0, []]),
        ({"type": "object"}, [{}], [[], "x"]),
        ({"type": "array"}, [[]], [{}]),
        ({"enum": ["a", 1]}, ["a", 1, 1.0], ["b", True]),
        ({"const": {"a": [1]}}, [{"a": [1]}, {"a": [1.0]}], [{"a": [True]}, {}]),
        ({"required": ["a"]}, [{"a": None}, 3], [{}]),
        ({"properties": {"a": {"type": "null"}}}, [{"a": None}, {}, {"b": 1}], [{"a": 1}]),
        ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"additionalProperties": {"type": "string"}}, [{"x": "y"}], [{"x": 1}]),
        ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
        ({"items": {"type": "string"}}, [["a"], []], [["a", 1]]),
        ({"prefixItems": [{"type": "null"}], "items": False}, [[None], []], [[1], [None, 1]]),
        ({"minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
        ({"uniqueItems": True}, [[1, True], [1, 2]], [[1, 1.0], [[], []]]),
        ({"minLength": 1, "maxLength": 2}, ["a", "é🙂"], ["", "abc"]),
        ({"minimum": 1, "maximum": 2}, [1, 2, "x"], [0, 2.1]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, [1.5], [1, 2]),
        ({"multipleOf": 0.1}, [0.3, 1, 10**400], [0.35]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["", None], [1]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [1, 5.5], [7, 1.5]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1], [0, 3]),
        ({"not": {"type": "string"}}, [1], ["x"]),
        ({"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"minimum": 1}}, ["a", 1], ["", 0]),
        ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {}], [{"a": 1}]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, [None], [1]),
        (False, [], [1]),
        (True, [1], []),
    ],
)
def test_a_keyword_holds_for_these_and_not_for_those(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        assert first_violation(schema, value) is None, value
    for value in wrong:
        assert first_violation(schema, value) is not None, value


def test_a_violation_says_where_and_of_what() -> None:
    assert first_violation(NESTED, {"a": [1, "x"]}) == Violation("$.a[1]", "type")


def test_a_name_that_the_schema_does_not_have_is_not_told() -> None:
    schema = {"additionalProperties": {"type": "null"}}
    assert first_violation(schema, {"secret": 1}) == Violation("$.*", "type")


@pytest.mark.parametrize(
    "schema", [{"type": 3}, {"properties": []}, {"items": "x"}, {"anyOf": {}}, {"required": "a"}, 7, None]
)
def test_what_is_no_schema_restricts_nothing(schema: Any) -> None:
    assert first_violation(schema, {"a": [1]}) is None


def test_a_recursive_schema_is_followed_down_the_value() -> None:
    schema = {"properties": {"next": {"$ref": "#"}}, "required": ["value"]}
    assert first_violation(schema, {"value": 1, "next": {"value": 2}}) is None
    assert first_violation(schema, {"value": 1, "next": {}}) == Violation("$.next", "required")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [{"$ref": "#"}] * 9},
        {"not": {"not": {"$ref": "#"}}},
    ],
)
def test_no_schema_takes_forever(schema: Any) -> None:
    start = time.process_time()
    first_violation(schema, {"a": 1})
    assert time.process_time() - start < 1


@settings(max_examples=300)
@given(SCHEMAS, JSON)
def test_any_schema_and_any_value_can_be_compared(schema: Any, value: Any) -> None:
    first_violation(schema, value)
