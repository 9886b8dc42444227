"""Answers made up from the grammar come out as the protocol's rules say, however they are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.answer import AnswerBuilder
from parsers.base import ContentDelta, ReasoningDelta, ToolArgumentsDelta, ToolCallStart
from tests.parsers.kimi_k3.grammar import Expected, Made, answers, cut
from tests.parsers.kimi_k3.material import TOKENIZER, TOOLS, ids_of, parser

PLACES = st.lists(st.integers(0, 500), max_size=12)


def read(made: Made, groups: list[list[int]]) -> tuple[Expected, Expected]:
    """The whole answer, and what the stream of it adds up to."""
    reader, builder = parser(thinking=made.thinking, tools=TOOLS), AnswerBuilder()
    events = [event for group in groups for event in reader.feed(group)]
    events += reader.finish("stop" if made.expected.finish == "tool_calls" else made.expected.finish)
    builder.add(events)
    answer = builder.build(reader)
    whole = Expected(
        answer.reasoning,
        answer.content,
        [(call.name, call.arguments) for call in answer.tool_calls],
        answer.finish_reason,
    )
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    streamed = Expected(
        "" if reader.reasoning_retracted else _joined(events, ReasoningDelta),
        _joined(events, ContentDelta),
        [
            (start.name, _arguments(events, start.index))
            for start in starts
            if start.index not in reader.incomplete_calls
        ],
        answer.finish_reason,
    )
    return whole, streamed


def _joined(events: list[object], kind: type[ReasoningDelta] | type[ContentDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def _arguments(events: list[object], index: int) -> str:
    return "".join(
        event.text for event in events if isinstance(event, ToolArgumentsDelta) and event.index == index
    )


@settings(max_examples=400)
@given(answers(), PLACES)
def test_an_answer_is_what_the_rules_make_of_it(made: Made, places: list[int]) -> None:
    ids = ids_of(made.segments)
    for groups in ([ids], [[token] for token in ids], cut(ids, places)):
        whole, streamed = read(made, groups)
        assert whole == made.expected, TOKENIZER.decode(ids)
        assert streamed == made.expected, TOKENIZER.decode(ids)
