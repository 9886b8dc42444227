"""What a chat asks of the form of its answer, checked, before a format puts it in its own words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, get_args

from parsers.base import Chat, Constraint, ConstraintKind, FormatError
from parsers.json_schema.enforceable import find_unsupported

KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)


def requested(chat: Chat) -> Constraint | None:
    """From `structured_outputs`, else from `response_format`. Raises FormatError that names the field."""
    if chat.structured_outputs is not None:
        return read_structured_outputs(chat.structured_outputs)
    return _of_response_format(chat.response_format) if chat.response_format is not None else None


def read_structured_outputs(value: Mapping[str, Any], param: str = "structured_outputs") -> Constraint:
    """vLLM's field: an object with one constraint. Raises FormatError."""
    given = {name: each for name, each in value.items() if each is not None}
    unknown = next((name for name in given if name not in KINDS), None)
    if unknown is not None:
        raise FormatError(f"it takes one of {', '.join(KINDS)}, not {unknown!r}", f"{param}.{unknown}")
    if len(given) != 1:
        raise FormatError(f"it takes exactly one of {', '.join(KINDS)}", param)
    kind = next(kind for kind in KINDS if kind in given)
    constraint = _read_tag(given[kind]) if kind == "structural_tag" else given[kind]
    if problem := _PROBLEMS[kind](constraint):
        raise FormatError(problem, f"{param}.{kind}")
    if kind == "json":
        check_schema(constraint, f"{param}.json")
    return Constraint(kind, constraint)


def check_schema(schema: object, path: str) -> None:
    """Raises FormatError for the first place in a schema that no worker would enforce."""
    if unsupported := find_unsupported(schema, path):
        raise FormatError(f"unsupported schema: {unsupported.reason}", unsupported.path)


def _of_response_format(wanted: Mapping[str, Any]) -> Constraint | None:
    kind = wanted.get("type")
    if kind == "json_object":
        return Constraint("json_object", True)
    if kind != "json_schema":
        return None
    wrapped = wanted.get("json_schema")
    path = "response_format.json_schema"
    if not isinstance(wrapped, Mapping):
        raise FormatError("json_schema is an object", path)
    name = next((name for name in ("schema", "json_schema") if name in wrapped), None)
    schema = wrapped if name is None else wrapped[name]
    check_schema(schema, path if name is None else f"{path}.{name}")
    return Constraint("json", schema)


def _text(value: object) -> str | None:
    return None if isinstance(value, str) and value else "it is a text that is not empty"


def _texts(value: object) -> str | None:
    right = isinstance(value, list) and value and all(isinstance(each, str) and each for each in value)
    return None if right else "it is a list of texts that are not empty"


def _read_tag(value: object) -> object:
    """vLLM takes a structural tag as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _tag(value: object) -> str | None:
    right = isinstance(value, Mapping) and isinstance(value.get("format"), Mapping)
    return None if right else "it is a structural tag: an object with a format"


_PROBLEMS: Mapping[ConstraintKind, Callable[[object], str | None]] = {
    "json": lambda value: None if isinstance(value, Mapping | bool) else "it is a JSON schema",
    "json_object": lambda value: None if value is True else "it is true",
    "regex": _text,
    "choice": _texts,
    "grammar": _text,
    "structural_tag": _tag,
}
