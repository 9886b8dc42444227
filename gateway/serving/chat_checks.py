"""What one field of a chat asks of another: messages, their tools, the choice among all tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.serving.errors import bad_request

_DYNAMIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,255}")
_SYSTEM = ("system", "developer")


def check_chat(values: Mapping[str, Any], max_messages: int, max_tools: int) -> None:
    """Raises RequestError that names the place."""
    messages = values["messages"]
    if not messages:
        raise bad_request("`messages` must not be empty.", "messages")
    if len(messages) > max_messages:
        raise bad_request(f"`messages` must have at most {max_messages} entries.", "messages")
    names = {tool["function"]["name"] for tool in values.get("tools") or ()}
    for place, message in enumerate(messages):
        if message.get("tools") is not None:
            _check_dynamic_tools(message, f"messages[{place}]", names)
        if message.get("role") == "tool" and not isinstance(message.get("tool_call_id"), str):
            param = f"messages[{place}].tool_call_id"
            raise bad_request(f"`{param}` is required of a tool's answer.", param)
    if len(names) > max_tools:
        raise bad_request(f"There must be at most {max_tools} tools.", "tools")
    _check_choice(values.get("tool_choice"), names)


def _check_dynamic_tools(message: Mapping[str, Any], path: str, names: set[str]) -> None:
    """Tools that a message adds: in a system message, with nothing else in it."""
    tools = message["tools"]
    param = f"{path}.tools"
    if message.get("role") not in _SYSTEM:
        raise bad_request(f"`{param}`: only system messages can add tools.", param)
    if not isinstance(tools, list) or not tools:
        raise bad_request(f"`{param}` must be a list of tool objects that is not empty.", param)
    if message.get("content"):
        raise bad_request(f"`{path}.content` must be empty beside `tools`.", f"{path}.content")
    for place, tool in enumerate(tools):
        name = _dynamic_name(tool, f"{param}[{place}]")
        if name in names:
            at = f"{param}[{place}].function.name"
            raise bad_request(f"`{at}`: the tool {name!r} is declared twice.", at)
        names.add(name)


def _dynamic_name(tool: Any, path: str) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping) or tool.get("type") != "function":
        raise bad_request(f"`{path}` must be an object of type 'function' with a `function`.", path)
    name = function.get("name")
    if not isinstance(name, str) or not _DYNAMIC_NAME.fullmatch(name):
        at = f"{path}.function.name"
        raise bad_request(f"`{at}` must be a name of at most 256 characters.", at)
    if not isinstance(function.get("parameters"), Mapping | None):
        at = f"{path}.function.parameters"
        raise bad_request(f"`{at}` must be a JSON schema, which is an object.", at)
    return name


def _check_choice(choice: Any, names: set[str]) -> None:
    if choice is None or choice in ("auto", "none"):
        return
    if not names:
        raise bad_request("`tool_choice` asks for a tool, and none is declared.", "tool_choice")
    if isinstance(choice, Mapping) and choice["function"]["name"] not in names:
        at = "tool_choice.function.name"
        raise bad_request(f"`{at}`: no tool {choice['function']['name'][:64]!r} is declared.", at)
