"""Constraints as workers get them, read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parsers.base import Chat
from parsers.registry import get_format
from simulator.constraint import ANYTHING, Wanted, read_constraint

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("one", 'say "two"')
]


def _asked(**fields: Any) -> Wanted:
    """What a K3 chat asks for, through the tag that the format makes of it."""
    chat = Chat(messages=[{"role": "user", "content": "hi"}], **fields)
    constraint = get_format("kimi_k3").encode(chat).constraint
    return (
        ANYTHING if constraint is None else read_constraint({constraint.kind: json.dumps(constraint.value)})
    )


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [
        (None, ANYTHING),
        ({}, ANYTHING),
        ({"json": SCHEMA}, Wanted(schema=SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, Wanted(schema=SCHEMA)),
        ({"json_object": True}, Wanted(schema={"type": "object"})),
        ({"choice": ["yes", "no"]}, Wanted(text="yes")),
        ({"regex": "[0-9]+"}, ANYTHING),
        ({"structural_tag": "no JSON"}, ANYTHING),
        ({"structural_tag": {"type": "structural_tag"}}, ANYTHING),
    ],
)
def test_plain_constraints(outputs: Any, wanted: Wanted) -> None:
    assert read_constraint(outputs) == wanted


def test_which_tools_and_whether_they_must() -> None:
    assert _asked(tools=TOOLS) == ANYTHING
    assert _asked(tools=TOOLS, tool_choice="required") == Wanted(tools=["one", 'say "two"'], must_call=True)
    named = {"type": "function", "function": {"name": 'say "two"'}}
    assert _asked(tools=TOOLS, tool_choice=named) == Wanted(tools=['say "two"'], must_call=True)


def test_a_strict_tool_may_be_left_alone() -> None:
    strict = [{"type": "function", "function": {"name": "one", "parameters": SCHEMA, "strict": True}}]
    assert _asked(tools=strict) == Wanted(tools=["one"])


def test_what_the_response_must_be() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert _asked(response_format=wanted) == Wanted(schema=SCHEMA)
    assert _asked(structured_outputs={"choice": ["yes", "no"]}) == Wanted(text="yes")
    both = _asked(response_format=wanted, tools=TOOLS[:1], tool_choice="required")
    assert both == Wanted(schema=SCHEMA, tools=["one"], must_call=True)
