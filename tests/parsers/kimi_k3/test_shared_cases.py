"""Chats and outputs that several engines fell over, collected; skipped where the collection is absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from parsers.answer import Answer
from parsers.base import Chat, FormatError, Segment, ToolArgumentsDelta
from parsers.kimi_k3.encoding import encode_chat
from tests.parsers.kimi_k3.material import (
    GROUPS,
    MARKERS,
    TOKENIZER,
    answer_of,
    events_of,
    grouped,
    ids_of,
    segments_of,
    shared_cases,
)

DELIBERATE = {
    "t52": "text before a call inside the response has been streamed and stays content",
}
PIECEWISE = ("bytes1", "chars1", "split_utf8")


def pieces_of(markup: str, chunking: str) -> Iterator[str]:
    """The text as an engine would cut it."""
    texts = [TOKENIZER.decode([token]) for token in ids_of(markup)]
    if chunking in PIECEWISE or "\ufffd" in "".join(texts):
        yield from markup
    elif chunking == "mid_marker":
        yield from _cut_inside_markers(markup)
    elif chunking == "stoplag8":
        ends = [max(0, len("".join(texts[:count])) - 8) for count in range(len(texts))] + [len(markup)]
        yield from (markup[start:stop] for start, stop in zip([0, *ends], ends, strict=False))
    elif chunking == "alternate_empty":
        for group in grouped(texts, 3):
            yield from ("".join(group), "")
    else:
        size = len(texts) if chunking == "whole" else int(chunking.removeprefix("tokens"))
        yield from ("".join(group) for group in grouped(texts, size))


def _cut_inside_markers(markup: str) -> Iterator[str]:
    piece = ""
    for text, is_control in segments_of(markup):
        if is_control:
            yield piece + text[:3]
            piece = text[3:]
        else:
            piece += text
    yield piece


def ways_of(case: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every way in which the case's output may arrive."""
    spelled = case.get("tokens")
    ids = ids_of([Segment(*token) for token in spelled] if spelled else case["output"])
    yield "whole", [ids]
    for size in GROUPS:
        yield f"ids by {size}", grouped(ids, size)
    if not spelled:
        for chunking in {
            "whole",
            "chars1",
            *(f"tokens{size}" for size in GROUPS),
            case.get("chunking", "whole"),
        }:
            yield f"text {chunking}", pieces_of(case["output"], chunking)


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "thinking": case["thinking"],
        "tools": case["tools"] or case.get("system_tools"),
        "tool_choice": case["tool_choice"],
        "parallel_tool_calls": case.get("parallel_tool_calls"),
    }


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def expected_of(case: dict[str, Any]) -> Any:
    expect = case["expect"]
    calls = [
        (
            each["name"],
            as_json(each["arguments"]) if isinstance(each["arguments"], str) else each["arguments"],
        )
        for each in expect["tool_calls"]
    ]
    return expect["reasoning_content"] or "", expect["content"] or "", calls, expect["finish_reason"]


def comparable(answer: Answer) -> Any:
    calls = [(each.name, as_json(each.arguments)) for each in answer.tool_calls]
    return answer.reasoning, answer.content, calls, answer.finish_reason


@pytest.mark.parametrize("case", shared_cases("reasoning", "tool", "stream"))
def test_an_output_gives_the_expected_answer_however_it_arrives(case: dict[str, Any]) -> None:
    if case["id"] in DELIBERATE:
        pytest.skip(DELIBERATE[case["id"]])
    for way, pieces in ways_of(case):
        answer = answer_of(pieces, finish=case["engine_finish"], **options_of(case))
        assert comparable(answer) == expected_of(case), way
        assert case.get("args_raw", []) in ([], [each.arguments for each in answer.tool_calls]), way


@pytest.mark.parametrize("case", shared_cases("stream"))
def test_a_stream_shows_no_marker_that_the_answer_does_not_have(case: dict[str, Any]) -> None:
    expected = (case["expect"]["reasoning_content"] or "") + (case["expect"]["content"] or "")
    for way, pieces in ways_of(case):
        events = events_of(pieces, finish=case["engine_finish"], **options_of(case))
        text = "".join(
            getattr(event, "text", "") for event in events if not isinstance(event, ToolArgumentsDelta)
        )
        assert not [marker for marker in MARKERS if marker in text and marker not in expected], way


@pytest.mark.parametrize("case", shared_cases("tool", where={"stream_requirement": "args_deltas>1"}))
def test_long_arguments_come_in_many_pieces(case: dict[str, Any]) -> None:
    events = events_of(grouped(ids_of(case["output"]), 1), **options_of(case))
    assert sum(isinstance(event, ToolArgumentsDelta) for event in events) > 1


@pytest.mark.parametrize("case", shared_cases("encode"))
def test_a_chat_gives_the_expected_segments(case: dict[str, Any]) -> None:
    kwargs = dict(case["kwargs"])
    revision = kwargs.pop("rev", "a")
    fields = {
        name: kwargs.pop(name) for name in ("thinking", "tool_choice", "response_format") if name in kwargs
    }
    chat = Chat(messages=case["messages"], tools=case["tools"], template_kwargs=kwargs, **fields)
    if "expect_error" in case:
        with pytest.raises(FormatError):
            encode_chat(chat, revision)
    else:
        assert encode_chat(chat, revision).segments == [Segment(*each) for each in case["expect_segments"]]
