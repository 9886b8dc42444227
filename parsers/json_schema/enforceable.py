"""Which JSON schemas a worker's grammar really enforces.

Grammar engines take almost any schema and silently leave out what they do not know. What is listed here
is what xgrammar enforces (seen with its 0.2.8); everything else that restricts values is named, so that
no client believes in a guarantee that is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MAX_DEPTH = 64
"""Objects and arrays inside each other, in a schema; workers refuse more."""

_TYPES = {"string", "number", "integer", "boolean", "null", "object", "array"}
_FORMATS = {
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"),
    *("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
}
_REFUSED = {
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
    *("contains", "minContains", "maxContains", "multipleOf", "unevaluatedItems", "unevaluatedProperties"),
    *("additionalItems", "$dynamicRef", "$recursiveRef"),
}


class Unsupported(NamedTuple):
    """Where a schema asks for what cannot be enforced."""

    path: str
    reason: str


def find_unsupported(schema: object, path: str) -> Unsupported | None:
    """The first such place, `path` being the schema's own; None when all of it is enforced."""
    return _Search(schema).look_at(schema, path, 0)


class _Search:
    def __init__(self, root: object) -> None:
        self._root = root

    def look_at(self, schema: object, path: str, depth: int) -> Unsupported | None:
        if isinstance(schema, bool):
            return None
        if not isinstance(schema, Mapping):
            return Unsupported(path, "a schema is an object or a boolean")
        if depth > MAX_DEPTH:
            return Unsupported(path, f"schemas may be nested {MAX_DEPTH} levels deep")
        for keyword, value in schema.items():
            place = f"{path}.{keyword}"
            check = _CHECKS.get(keyword)
            reason = check(value, schema) if check else None
            if keyword == "$ref":
                reason = self._bad_reference(value)
            if keyword in _REFUSED:
                reason = "it cannot be enforced"
            if reason:
                return Unsupported(place, reason)
            if found := self._look_inside(keyword, value, place, depth + 1):
                return found
        return None

    def _look_inside(self, keyword: str, value: Any, place: str, depth: int) -> Unsupported | None:
        if keyword in ("properties", "patternProperties", "$defs", "definitions"):
            inner = [(f"{place}.{name}", each) for name, each in value.items()]
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            inner = [(f"{place}[{number}]", each) for number, each in enumerate(value)]
        elif keyword in ("items", "additionalProperties"):
            inner = [(place, value)]
        else:
            return None
        return next((found for where, each in inner if (found := self.look_at(each, where, depth))), None)

    def _bad_reference(self, reference: object) -> str | None:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return "only references inside the schema can be followed"
        target = self._root
        for name in reference.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                return f"there is nothing at {reference}"
            target = target[name]
        return None


_Check = Callable[[Any, Mapping[str, Any]], str | None]


def _is(kind: type | tuple[type, ...], what: str) -> _Check:
    def check(value: Any, schema: Mapping[str, Any]) -> str | None:
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        return f"it is {what}" if wrong else None

    return check


_mapping, _list = _is(Mapping, "an object"), _is(list, "a list")
_number, _count, _text = _is((int, float), "a number"), _is(int, "a number"), _is(str, "a string")


def _type(value: Any, schema: Mapping[str, Any]) -> str | None:
    names = value if isinstance(value, list) and value else [value]
    wrong = [name for name in names if not isinstance(name, str) or name not in _TYPES]
    return f"there is no type {wrong[0]!r}" if wrong else None


def _unique(value: Any, schema: Mapping[str, Any]) -> str | None:
    return "it cannot be enforced" if value else None


def _all_of(value: Any, schema: Mapping[str, Any]) -> str | None:
    return _list(value, schema) or ("several at once cannot be enforced" if len(value) > 1 else None)


def _format(value: Any, schema: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str) or value not in _FORMATS:
        return f"the format {value!r} cannot be enforced"
    return _with_lengths(schema)


def _pattern(value: Any, schema: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return "it is a string"
    if "(?" in value.replace("(?:", "") or any(f"\\{digit}" in value for digit in range(1, 10)):
        return "only plain regular expressions can be enforced: no lookaround, no references"
    return _with_lengths(schema)


def _with_lengths(schema: Mapping[str, Any]) -> str | None:
    bounded = "minLength" in schema or "maxLength" in schema
    return "it cannot be enforced together with a length" if bounded else None


def _alone(*others: str) -> _Check:
    def check(value: Any, schema: Mapping[str, Any]) -> str | None:
        beside = next((other for other in others if other in schema), None)
        return f"it cannot be enforced together with {beside}" if beside else _mapping(value, schema)

    return check


def _pattern_properties(value: Any, schema: Mapping[str, Any]) -> str | None:
    several = isinstance(value, Mapping) and len(value) > 1
    return "several patterns cannot be enforced" if several else _alone("properties")(value, schema)


_CHECKS: Mapping[str, _Check] = {
    "type": _type,
    "enum": _list,
    "properties": _mapping,
    "required": _list,
    "patternProperties": _pattern_properties,
    "propertyNames": _alone("properties", "patternProperties"),
    "minProperties": _count,
    "maxProperties": _count,
    "prefixItems": _list,
    "minItems": _count,
    "maxItems": _count,
    "uniqueItems": _unique,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _pattern,
    "format": _format,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "anyOf": _list,
    "oneOf": _list,
    "allOf": _all_of,
    "$defs": _mapping,
    "definitions": _mapping,
}
