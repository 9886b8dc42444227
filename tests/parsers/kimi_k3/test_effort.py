from __future__ import annotations

from typing import Any

import pytest

from parsers.base import Chat, FormatError
from parsers.kimi_k3.effort import Thinking, resolve_thinking

OFF = Thinking(False, None)


def resolve(**fields: Any) -> Thinking:
    return resolve_thinking(Chat(messages=[], **fields))


def kwargs(**values: Any) -> dict[str, Any]:
    return {"template_kwargs": values}


def test_by_default_the_model_thinks_with_all_effort() -> None:
    assert resolve() == Thinking(True, "max")


@pytest.mark.parametrize(
    ("asked", "effort"),
    [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "high"),
        ("high", "high"),
        ("xhigh", "max"),
        ("max", "max"),
    ],
)
def test_every_usual_effort_has_a_meaning(asked: str, effort: str) -> None:
    assert resolve(reasoning_effort=asked) == Thinking(True, effort)
    assert resolve(thinking={"type": "enabled", "effort": asked}) == Thinking(True, effort)
    assert resolve(**kwargs(reasoning_effort=asked)) == Thinking(True, effort)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"thinking": False},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "disabled", "keep": "last", "effort": "low"}},
        {"thinking": {"effort": "none"}},
        kwargs(thinking=False),
        kwargs(enable_thinking=False),
        {"reasoning_effort": "high", **kwargs(thinking=False)},
    ],
)
def test_thinking_can_be_switched_off_in_many_ways(fields: dict[str, Any]) -> None:
    assert resolve(**fields) == OFF


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"thinking": {"type": "enabled"}, **kwargs(thinking=False)}, Thinking(True, "max")),
        ({"thinking": True, "reasoning_effort": "none"}, Thinking(True, "max")),
        (kwargs(thinking=True, enable_thinking=False), Thinking(True, "max")),
        (kwargs(thinking=None, enable_thinking=False), OFF),
        ({"thinking": {"effort": "low"}, "reasoning_effort": "high"}, Thinking(True, "low")),
        ({"reasoning_effort": "low", **kwargs(thinking_effort="high")}, Thinking(True, "low")),
        (kwargs(thinking_effort="high", reasoning_effort="low"), Thinking(True, "high")),
        ({"thinking": {"type": "enabled", "effort": None}}, Thinking(True, "max")),
        ({"thinking": {"type": "adaptive", "keep": "all"}}, Thinking(True, "max")),
    ],
)
def test_what_comes_first_wins(fields: dict[str, Any], expected: Thinking) -> None:
    assert resolve(**fields) == expected


def test_the_template_may_be_told_to_write_no_note() -> None:
    assert resolve(**kwargs(thinking_effort=None)) == Thinking(True, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": "huge", "thinking": False}, "reasoning_effort"),
        ({"thinking": {"effort": 3}}, "thinking.effort"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"thinking": {"type": []}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "keep": "last"}}, "thinking.keep"),
        (kwargs(thinking_effort="medium"), "chat_template_kwargs.thinking_effort"),
        (kwargs(thinking_effort=["low"]), "chat_template_kwargs.thinking_effort"),
        (kwargs(reasoning_effort="huge"), "chat_template_kwargs.reasoning_effort"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FormatError) as refusal:
        resolve(**fields)
    assert refusal.value.param == param


class TestStrictEfforts:
    @pytest.mark.parametrize("effort", ["low", "high", "max"])
    def test_what_the_model_has_is_taken(self, effort: str) -> None:
        assert resolve(reasoning_effort=effort, strict_efforts=True) == Thinking(True, effort)

    @pytest.mark.parametrize("effort", ["none", "minimal", "medium", "xhigh", "silly", ""])
    def test_what_it_does_not_have_is_refused_wherever_it_comes(self, effort: str) -> None:
        for fields, param in (
            ({"reasoning_effort": effort}, "reasoning_effort"),
            ({"thinking": {"effort": effort}}, "thinking.effort"),
            (kwargs(reasoning_effort=effort), "chat_template_kwargs.reasoning_effort"),
            (kwargs(thinking_effort=effort), "chat_template_kwargs.thinking_effort"),
        ):
            with pytest.raises(FormatError) as caught:
                resolve(strict_efforts=True, **fields)
            assert caught.value.param == param

    def test_thinking_can_still_be_switched_off(self) -> None:
        assert resolve(thinking={"type": "disabled"}, strict_efforts=True) == OFF
