"""A small value that fits a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 12
SPARE_DEPTH = 3
"""From here on nothing is made up that may be left out: a schema that holds itself has to come to an end."""
Schema = Mapping[str, Any]


def example(schema: Any, text: str, root: Schema | None = None, depth: int = 0) -> Any:
    """A value for `schema`; free strings are `text`. Patterns and formats are not looked at.

    Objects get their required properties, or the first one when none is required. What is nested deeper than
    MAX_DEPTH becomes None.
    """
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return None if isinstance(schema, Mapping) else text
    root = schema if root is None else root
    allowed = schema.get("enum")
    for key in ("const", "default"):
        if key in schema and (not allowed or schema[key] in allowed):
            return schema[key]
    if allowed:
        return allowed[0]
    inner = _redirect(schema, root, depth)
    if inner is not None:
        return example(inner, text, root, depth + 1)
    return _of_type(schema, text, root, depth)


def _redirect(schema: Schema, root: Schema, depth: int) -> Any:
    """The schema that stands behind a reference or a combination."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target: Any = root
        for part in reference[1:].split("/")[1:]:
            target = (
                target.get(part.replace("~1", "/").replace("~0", "~"), {})
                if isinstance(target, Mapping)
                else {}
            )
        return target
    for key in ("anyOf", "oneOf"):
        if options := schema.get(key):
            return min(options, key=_reach) if depth >= SPARE_DEPTH else options[0]
    parts = schema.get("allOf")
    if parts:
        merged: dict[str, Any] = {}
        for part in parts:
            merged |= part
        return merged
    return None


def _reach(schema: Any) -> int:
    """How far a value of it may lead: nothing in it, its own members, or anywhere."""
    if not isinstance(schema, Mapping) or "$ref" in schema:
        return 2
    return int(schema.get("type") in ("object", "array", None) and "enum" not in schema)


def _of_type(schema: Schema, text: str, root: Schema, depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((entry for entry in kind if entry != "null"), "null")
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, text, root, depth)
    if kind == "array":
        count = max(int(schema.get("minItems", int(depth < SPARE_DEPTH))), 0)
        return [example(schema.get("items", {}), text, root, depth + 1) for _ in range(count)]
    if kind in {"integer", "number"}:
        return _number(schema, whole=kind == "integer")
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return _string(schema, text)


def _object(schema: Schema, text: str, root: Schema, depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    names = schema.get("required") or (list(properties)[:1] if depth < SPARE_DEPTH else [])
    return {name: example(properties.get(name, {}), text, root, depth + 1) for name in names}


def _number(schema: Schema, *, whole: bool) -> int | float:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + 1
    value = low if low is not None else min(1, 1 if high is None else high)
    step = schema.get("multipleOf") or (1 if whole else None)
    if step is not None:
        # Towards the side on which the schema leaves room.
        value = -(-value // step) * step if low is not None else value // step * step
    return int(value) if whole else value


def _string(schema: Schema, text: str) -> str:
    shortest, longest = int(schema.get("minLength", 0)), schema.get("maxLength")
    value = text if len(text) >= shortest else text.ljust(shortest, "x")
    return value if longest is None else value[: int(longest)]
