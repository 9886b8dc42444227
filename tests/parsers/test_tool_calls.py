from __future__ import annotations

from typing import Any

import pytest

from parsers.base import FinishedCall
from parsers.tool_calls import call_violations

TOOLS = [
    {
        "type": "function",
        "function": {"name": "run", "parameters": {"properties": {"n": {"type": "integer"}}}},
    },
    {"name": "flat"},
    "no tool",
    {"function": {"name": 3}},
]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("run", {"n": 1}, []),
        ("run", {"n": "secret"}, [("schema", "run: type at $.n")]),
        ("run", None, [("not_json", "run: the arguments are no JSON")]),
        ("flat", {"anything": 1}, []),
        ("secret", {}, [("undeclared", "no such tool is declared")]),
    ],
)
def test_a_violation_names_the_tool_and_the_place_and_nothing_that_was_said(
    name: str, arguments: Any, expected: list[tuple[str, str]]
) -> None:
    assert list(call_violations([FinishedCall(name, arguments)], TOOLS)) == expected


def test_each_call_is_counted_once() -> None:
    calls = [
        FinishedCall("run", {"n": "x", "m": "y"}),
        FinishedCall("run", {"n": 1}),
        FinishedCall("walk", {}),
    ]
    assert [violation.kind for violation in call_violations(calls, TOOLS)] == ["schema", "undeclared"]
