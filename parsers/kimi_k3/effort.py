"""Whether the model shall think, and how hard.

The switch, first that is given: the request's `thinking` (a boolean, or an object's `type`), then
`chat_template_kwargs.thinking`, then `.enable_thinking`, then `reasoning_effort: none`; else on.

The effort, first that is given: `thinking.effort`, `reasoning_effort`,
`chat_template_kwargs.thinking_effort`, `.reasoning_effort`; else `max`. The template's own
`thinking_effort` takes what the template takes (`low`, `high`, `max`; null writes no note); the others
also take the names that are used elsewhere, unless the chat asks for strict efforts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parsers.base import Chat, FormatError

_OFF = "none"
_PORTABLE = {
    "none": _OFF,
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
_TEMPLATE_EFFORTS = ("low", "high", "max")
_SWITCH = {"enabled": True, "adaptive": True, "disabled": False}


class Thinking(NamedTuple):
    on: bool
    effort: str | None
    """What the prompt's effort note says; None writes no note."""


_USUAL = Thinking(True, "max")
"""Of a chat that says nothing of it."""


def resolve_thinking(chat: Chat) -> Thinking:
    """Raises FormatError for a switch or an effort that does not exist."""
    if chat.thinking is None and chat.reasoning_effort is None and not chat.template_kwargs:
        return _USUAL
    config = chat.thinking if isinstance(chat.thinking, Mapping) else {}
    if config.get("type") != "disabled" and config.get("keep") not in (None, "all"):
        raise FormatError("past reasoning is always kept: thinking.keep can only be 'all'", "thinking.keep")
    switch = _switch(chat, config)
    effort = _effort(chat, config)
    on = effort != _OFF if switch is None else switch
    if not on:
        return Thinking(False, None)
    if effort == _OFF:
        effort = "max"
    return Thinking(True, effort)


def _switch(chat: Chat, config: Mapping[str, Any]) -> bool | None:
    if isinstance(chat.thinking, bool):
        return chat.thinking
    if "type" in config:
        kind = config["type"]
        if not isinstance(kind, str) or kind not in _SWITCH:
            raise FormatError(f"thinking.type is one of enabled, disabled, not {kind!r}", "thinking.type")
        return _SWITCH[kind]
    for name in ("thinking", "enable_thinking"):
        if chat.template_kwargs.get(name) is not None:
            return bool(chat.template_kwargs[name])
    return None


def _effort(chat: Chat, config: Mapping[str, Any]) -> str | None:
    kwargs = chat.template_kwargs
    if config.get("effort") is not None:
        return _portable(chat, config["effort"], "thinking.effort")
    if chat.reasoning_effort is not None:
        return _portable(chat, chat.reasoning_effort, "reasoning_effort")
    if "thinking_effort" in kwargs:
        return _of_template(kwargs["thinking_effort"])
    if kwargs.get("reasoning_effort") is not None:
        return _portable(chat, kwargs["reasoning_effort"], "chat_template_kwargs.reasoning_effort")
    return "max"


def _of_template(effort: object) -> str | None:
    if effort is None or (isinstance(effort, str) and effort in _TEMPLATE_EFFORTS):
        return effort
    raise FormatError(
        f"thinking_effort {effort!r} is not supported; it is one of low, high, max",
        "chat_template_kwargs.thinking_effort",
    )


def _portable(chat: Chat, effort: object, param: str) -> str:
    known = _TEMPLATE_EFFORTS if chat.strict_efforts else tuple(_PORTABLE)
    if isinstance(effort, str) and effort in known:
        return _PORTABLE[effort]
    raise FormatError(f"{effort!r} is not a reasoning effort; it is one of {', '.join(known)}", param)
