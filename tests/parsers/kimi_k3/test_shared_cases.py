"""Chats and outputs that several engines fell over, collected; skipped where the collection is absent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from parsers.answer import Answer, AnswerBuilder
from parsers.base import (
    Chat,
    ContentDelta,
    FormatError,
    OutputEvent,
    ReasoningDelta,
    Segment,
    ToolArgumentsDelta,
    ToolCallStart,
)
from parsers.kimi_k3.encoding import encode_chat
from tests.parsers.kimi_k3.material import (
    GROUPS,
    MARKERS,
    TOKENIZER,
    answer_of,
    events_of,
    grouped,
    ids_of,
    parser,
    segments_of,
    shared_cases,
)

DELIBERATE = {"t52": {"content": "Here is how: "}}
"""Where a debatable expectation cannot be met: what a stream has shown before a call stays content."""
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
    expect = case["expect"] | DELIBERATE.get(case["id"], {})
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


@pytest.mark.parametrize("case", shared_cases("reasoning", "tool", "stream"))
def test_what_is_streamed_adds_up_to_the_answer(case: dict[str, Any]) -> None:
    expected = expected_of(case)
    for way, pieces in ways_of(case):
        reader, builder, streamed = parser(**options_of(case)), AnswerBuilder(), []
        for piece in pieces:
            streamed += reader.feed_text(piece) if isinstance(piece, str) else reader.feed(piece)
        streamed += reader.finish(case["engine_finish"])
        builder.add(streamed)
        answer = builder.build(reader)
        assert comparable(answer) == expected, way
        content = joined(streamed, ContentDelta)
        assert content == expected[1], way
        if not (case.get("allow_reasoning_dup") or reader.reasoning_retracted):
            assert joined(streamed, ReasoningDelta) == expected[0], way
        complete = [
            (start.name, as_json(joined(streamed, ToolArgumentsDelta, start.index)))
            for start in streamed
            if isinstance(start, ToolCallStart) and start.index not in reader.incomplete_calls
        ]
        assert complete == expected[2], way
        if reader.incomplete_calls:
            assert case.get("allow_partial_tail") or case["expect"]["finish_reason"] != "tool_calls"


def joined(events: Sequence[OutputEvent], kind: type[Any], index: int | None = None) -> str:
    """The text of all events of a kind, of one call where there are several."""
    return "".join(
        event.text for event in events if isinstance(event, kind) and getattr(event, "index", None) == index
    )


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
    messages = case["messages"]
    if kwargs.get("image_prompts"):
        messages = with_sizes(messages, kwargs.pop("image_prompts"))
    chat = Chat(messages=messages, tools=case["tools"], template_kwargs=kwargs, **fields)
    if "expect_error" not in case:
        expected = [Segment(*each) for each in case["expect_segments"]]
        assert encode_chat(chat, revision).segments == list(apart(expected))
    elif any(map(has_odd_arguments, messages)):
        # What is no JSON object is kept, never refused.
        assert Segment("json", False) in encode_chat(chat, revision).segments
    else:
        with pytest.raises(FormatError):
            encode_chat(chat, revision)


def with_sizes(messages: list[Any], image_prompts: list[str]) -> list[Any]:
    """Images with the sizes that the prompts beside the messages give them."""
    sizes = [[int(side) for side in re.findall(r"image (\d+)x(\d+)", each)[0]] for each in image_prompts]
    images = [
        part
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part.get("type") in ("image", "image_url")
    ]
    for part, size in zip(images, sizes, strict=True):
        part["image_size"] = size
    return messages


def apart(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Segments with every control token for itself: a case may write an image as one piece."""
    for text, is_control in segments:
        pieces = re.split(r"(<\|media_[a-z]+\|>)", text) if is_control else [text]
        for piece in filter(None, pieces):
            yield Segment(piece, is_control and piece.startswith("<|"))


def has_odd_arguments(message: Any) -> bool:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    arguments = [call["function"].get("arguments") for call in calls or ()]
    return any(isinstance(each, str) and not isinstance(as_json(each), dict) for each in arguments)
