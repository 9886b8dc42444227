"""What one field of a chat asks of another."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.serving.chat_checks import check_chat
from gateway.serving.errors import RequestError


def tool(name: Any = "get_weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def system(*tools: Any, content: Any = "") -> dict[str, Any]:
    return {"role": "system", "content": content, "tools": list(tools)}


USER = {"role": "user", "content": "Hi"}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def check(*messages: Any, **fields: Any) -> str | None:
    """The field that is refused, or None."""
    refused: RequestError | None = None
    try:
        check_chat({"messages": list(messages), **fields}, 10, 3)
    except RequestError as error:
        refused = error
    assert refused is None or refused.status == 400
    return refused.param if refused else None


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([USER] * 11, "messages"),
        ([{**USER, "tools": [tool()]}], "messages[0].tools"),
        ([USER, {"role": "assistant", "content": "x", "tools": [tool()]}], "messages[1].tools"),
        ([system(tool(), content="x")], "messages[0].content"),
        ([system()], "messages[0].tools"),
        ([{"role": "system", "tools": {"type": "function"}}], "messages[0].tools"),
        ([system(None)], "messages[0].tools[0]"),
        ([system(tool(), {"function": {"name": "x"}})], "messages[0].tools[1]"),
        ([system({"type": "web_search", "function": {"name": "x"}})], "messages[0].tools[0]"),
        ([system({"type": "function"})], "messages[0].tools[0]"),
        ([system(tool(None))], "messages[0].tools[0].function.name"),
        (
            [system({"type": "function", "function": {"name": "x", "parameters": [1]}})],
            "messages[0].tools[0].function.parameters",
        ),
        ([system(tool("1bad"))], "messages[0].tools[0].function.name"),
        ([system(tool("bad@name"))], "messages[0].tools[0].function.name"),
        ([system(tool(""))], "messages[0].tools[0].function.name"),
        ([system(tool("a" * 257))], "messages[0].tools[0].function.name"),
        ([system(tool(), tool())], "messages[0].tools[1].function.name"),
        ([system(tool()), system(tool())], "messages[1].tools[0].function.name"),
        ([system(*map(tool, "abcd"))], "tools"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "x", "tool_call_id": 3}], "messages[0].tool_call_id"),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(messages: list[Any], param: str) -> None:
    assert check(*messages) == param


def test_a_name_that_the_request_declares_cannot_be_declared_again_in_a_message() -> None:
    assert check(system(tool()), tools=[tool()]) == "messages[0].tools[0].function.name"


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", ["", None])
def test_messages_may_add_tools(role: str, content: Any) -> None:
    message = system(tool(strict=False), content=content) | {"role": role}
    assert check(message, system(tool("get_time")), USER, tools=[tool("search")]) is None


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_without_tools_nothing_need_be_called(choice: Any) -> None:
    assert check(USER, tool_choice=choice) is None


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_needs_a_tool_wherever_it_is_declared(choice: Any) -> None:
    assert check(USER, tool_choice=choice) == "tool_choice"
    assert check(USER, tool_choice=choice, tools=[tool()]) is None
    assert check(system(tool()), USER, tool_choice=choice) is None


def test_a_named_tool_must_be_declared() -> None:
    assert check(USER, tool_choice=NAMED, tools=[tool("other")]) == "tool_choice.function.name"
