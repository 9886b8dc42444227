from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from parsers.answer import Answer, AnswerBuilder, ToolCall
from parsers.base import ContentDelta, Finish, ReasoningDelta, ToolArgumentsDelta, ToolCallStart


def parser(**state: Any) -> Any:
    return SimpleNamespace(**{"reasoning_retracted": False, "incomplete_calls": (), **state})


def built(**state: Any) -> Answer:
    builder = AnswerBuilder()
    builder.add([ReasoningDelta("r1"), ReasoningDelta("r2"), ContentDelta("c1"), ContentDelta("c2")])
    builder.add([ToolCallStart(0, "id0", "f"), ToolArgumentsDelta(0, '{"a"'), ToolArgumentsDelta(0, ": 1}")])
    builder.add([ToolCallStart(1, "id1", "g"), ToolArgumentsDelta(1, "{}"), Finish("tool_calls")])
    return builder.build(parser(**state))


def test_pieces_are_joined() -> None:
    assert built() == Answer(
        reasoning="r1r2",
        content="c1c2",
        tool_calls=[ToolCall("id0", "f", '{"a": 1}'), ToolCall("id1", "g", "{}")],
        finish_reason="tool_calls",
    )


def test_retracted_reasoning_is_left_out() -> None:
    assert built(reasoning_retracted=True).reasoning == ""


def test_incomplete_calls_are_left_out() -> None:
    assert [call.name for call in built(incomplete_calls=[0]).tool_calls] == ["g"]
