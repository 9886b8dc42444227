"""Whether a JSON value keeps to a schema: for counting what models get wrong.

It knows JSON Schema's validating keywords but two: `pattern` and `format` are not looked at, because a
client's pattern can take forever and a format says little. What is no schema restricts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

_MAX_DEPTH = 64
_MAX_STEPS = 10_000
"""Subschemas that are looked at: what is left then counts as right, so that no schema takes forever."""
_MAX_UNIQUE = 200
"""Items of a list that are compared with each other."""


class Violation(NamedTuple):
    path: str
    """Where in the value, from `$`; `*` stands for a name that the schema does not have."""
    keyword: str
    """What of the schema it violates."""


def first_violation(schema: object, value: object) -> Violation | None:
    """None when the value keeps to the schema."""
    return next(_Validation(schema).violations(schema, value, "$", 0), None)


def is_type(value: object, name: object) -> bool:
    """Whether a value has a type of JSON Schema."""
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, int):
        return name in ("integer", "number")
    if isinstance(value, float):
        return name == "number" or (name == "integer" and value.is_integer())
    return name == _TYPE_NAMES.get(type(value), "null")


_TYPE_NAMES: dict[type, str] = {str: "string", dict: "object", list: "array"}
_Found = Iterator[Violation]
_Rule = Callable[[Any, Any, Mapping[str, Any]], bool]


class _Validation:
    def __init__(self, root: object) -> None:
        self._root = root
        self._steps = 0

    def violations(self, schema: object, value: object, path: str, depth: int) -> _Found:
        if schema is False:
            yield Violation(path, "false")
        self._steps += 1
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            return
        for keyword, rule in schema.items():
            holds = _RULES.get(keyword)
            if holds is not None and not holds(value, rule, schema):
                yield Violation(path, keyword)
            elif keyword in _APPLICATORS:
                yield from self._apply(keyword, rule, schema, value, path, depth + 1)

    def _apply(
        self, keyword: str, rule: Any, schema: Mapping[str, Any], value: Any, path: str, depth: int
    ) -> _Found:
        if keyword == "$ref":
            yield from self.violations(self._target(rule), value, path, depth)
        elif keyword == "allOf" and isinstance(rule, list):
            for each in rule:
                yield from self.violations(each, value, path, depth)
        elif keyword in ("anyOf", "oneOf", "not", "if"):
            if not self._choice_holds(keyword, rule, schema, value, depth):
                yield Violation(path, keyword)
        elif isinstance(value, dict):
            yield from self._members(keyword, rule, schema, value, path, depth)
        elif isinstance(value, list):
            yield from self._items(keyword, rule, schema, value, path, depth)

    def _choice_holds(
        self, keyword: str, rule: Any, schema: Mapping[str, Any], value: Any, depth: int
    ) -> bool:
        def holds(each: object) -> bool:
            return next(self.violations(each, value, "$", depth), None) is None

        if keyword == "not":
            return not holds(rule)
        if keyword == "if":
            return holds(schema.get("then" if holds(rule) else "else", True))
        if not isinstance(rule, list) or not rule:
            return True
        matches = sum(1 for _ in islice(filter(holds, rule), 2))
        return matches == 1 if keyword == "oneOf" else matches > 0

    def _members(
        self, keyword: str, rule: Any, schema: Mapping[str, Any], value: dict[str, Any], path: str, depth: int
    ) -> _Found:
        named = schema.get("properties")
        named = named if isinstance(named, Mapping) else {}
        if keyword == "properties":
            for name, each in named.items():
                if name in value:
                    yield from self.violations(each, value[name], f"{path}.{name}", depth)
        elif keyword == "additionalProperties" and "patternProperties" not in schema:
            for name in value.keys() - named.keys():
                yield from self.violations(rule, value[name], f"{path}.*", depth)
        elif keyword == "propertyNames":
            for name in value:
                yield from self.violations(rule, name, f"{path}.*", depth)

    def _items(
        self, keyword: str, rule: Any, schema: Mapping[str, Any], value: list[Any], path: str, depth: int
    ) -> _Found:
        prefix = schema.get("prefixItems")
        prefix = prefix if isinstance(prefix, list) else []
        if keyword == "prefixItems":
            for place, (each, item) in enumerate(zip(prefix, value, strict=False)):
                yield from self.violations(each, item, f"{path}[{place}]", depth)
        elif keyword == "items":
            for place, item in enumerate(value[len(prefix) :], len(prefix)):
                yield from self.violations(rule, item, f"{path}[{place}]", depth)

    def _target(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        target: Any = self._root
        for name in reference.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                return True
            target = target[name]
        return target


_APPLICATORS = frozenset(
    {
        *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "properties", "additionalProperties"),
        *("propertyNames", "prefixItems", "items"),
    }
)


def _same(one: object, other: object) -> bool:
    """Equal as JSON: true is no 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _type_holds(value: Any, rule: Any, schema: Mapping[str, Any]) -> bool:
    names = rule if isinstance(rule, list) else [rule]
    return not isinstance(rule, list | str) or any(is_type(value, name) for name in names)


def _required_holds(value: Any, rule: Any, schema: Mapping[str, Any]) -> bool:
    if not isinstance(value, dict) or not isinstance(rule, list):
        return True
    return all(name in value for name in rule if isinstance(name, str))


def _unique_holds(value: Any, rule: Any, schema: Mapping[str, Any]) -> bool:
    if not isinstance(value, list) or rule is not True or len(value) > _MAX_UNIQUE:
        return True
    return not any(_same(item, other) for place, item in enumerate(value) for other in value[:place])


def _dependent_holds(value: Any, rule: Any, schema: Mapping[str, Any]) -> bool:
    if not isinstance(value, dict) or not isinstance(rule, Mapping):
        return True
    return all(_required_holds(value, names, schema) for name, names in rule.items() if name in value)


def _multiple_holds(value: Any, rule: Any) -> bool:
    if rule <= 0:
        return True
    try:
        share = value / rule
    except OverflowError:
        return True
    return math.isfinite(share) and abs(share - round(share)) < 1e-9


def _numeric(holds: Callable[[Any, Any], bool]) -> _Rule:
    def rule_holds(value: Any, rule: Any, schema: Mapping[str, Any]) -> bool:
        return not (is_type(value, "number") and is_type(rule, "number")) or holds(value, rule)

    return rule_holds


def _sized(
    kind: type[str] | type[list[Any]] | type[dict[str, Any]], holds: Callable[[int, Any], bool]
) -> _Rule:
    def rule_holds(value: Any, rule: Any, schema: Mapping[str, Any]) -> bool:
        return not (isinstance(value, kind) and is_type(rule, "number")) or holds(len(value), rule)

    return rule_holds


_RULES: Mapping[str, _Rule] = {
    "type": _type_holds,
    "enum": lambda value, rule, _: not isinstance(rule, list) or any(_same(value, each) for each in rule),
    "const": lambda value, rule, _: _same(value, rule),
    "required": _required_holds,
    "dependentRequired": _dependent_holds,
    "uniqueItems": _unique_holds,
    "minimum": _numeric(lambda value, rule: value >= rule),
    "maximum": _numeric(lambda value, rule: value <= rule),
    "exclusiveMinimum": _numeric(lambda value, rule: value > rule),
    "exclusiveMaximum": _numeric(lambda value, rule: value < rule),
    "multipleOf": _numeric(_multiple_holds),
    "minLength": _sized(str, lambda size, rule: size >= rule),
    "maxLength": _sized(str, lambda size, rule: size <= rule),
    "minItems": _sized(list, lambda size, rule: size >= rule),
    "maxItems": _sized(list, lambda size, rule: size <= rule),
    "minProperties": _sized(dict, lambda size, rule: size >= rule),
    "maxProperties": _sized(dict, lambda size, rule: size <= rule),
}
