"""What finished tool calls get wrong, for counting: nothing that a model says is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from parsers.base import FinishedCall
from parsers.json_schema.validator import first_violation

Kind = Literal["undeclared", "not_json", "schema"]


class CallViolation(NamedTuple):
    kind: Kind
    detail: str
    """The tool, and where in the arguments what of its schema does not hold; nothing that the model said."""


def call_violations(calls: Sequence[FinishedCall], tools: Sequence[Any]) -> Iterator[CallViolation]:
    """One at most for each call, against the tools as a request declares them."""
    parameters = {name: schema for name, schema in map(_declared, tools) if name is not None}
    for name, arguments in calls:
        if name not in parameters:
            yield CallViolation("undeclared", "no such tool is declared")
        elif arguments is None:
            yield CallViolation("not_json", f"{name}: the arguments are no JSON")
        elif violation := first_violation(parameters[name], arguments):
            yield CallViolation("schema", f"{name}: {violation.keyword} at {violation.path}")


def _declared(tool: Any) -> tuple[str | None, Any]:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return None, None
    return function["name"], function.get("parameters")
