"""What holds for every output, not only for those we thought of."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parsers.answer import AnswerBuilder
from parsers.base import ContentDelta, Finish, OutputEvent, ReasoningDelta, ToolArgumentsDelta, ToolCallStart
from parsers.kimi_k3.markers import CLOSE_ID, OPEN_ID, SEP_ID
from tests.parsers.kimi_k3.material import (
    MARKERS,
    TOKENIZER,
    TOOLS,
    argument,
    call,
    ids_of,
    parser,
    plain,
    tools,
    turn,
)

VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=12)
"""Text that can hold no marker, so that it is the same spelled and in tokens."""
ANY_TEXT = st.lists(st.characters(exclude_categories=["Cs"]) | st.sampled_from(MARKERS), max_size=12).map(
    "".join
)
KEYS = st.text(st.characters(categories=["L"]), min_size=1, max_size=6)
ARGUMENTS = st.lists(st.tuples(KEYS, VALUES, st.sampled_from(["string", "number", "object", "odd", None])))
CALLS = st.lists(st.tuples(KEYS, ARGUMENTS), max_size=7)
WORDS = (
    *("think", "response", "tools", "call", "argument", "json", "message"),
    *(' tool="f"', ' key="k"', ' type="number"', "12", " x", "\n", "🙂", "<|", "nonsense"),
)
SOUP = st.lists(
    st.sampled_from([OPEN_ID, OPEN_ID, CLOSE_ID, CLOSE_ID, SEP_ID, SEP_ID, 163_586, 163_605, -1, 2**40])
    | st.sampled_from(WORDS)
    | st.integers(0, 255),
    max_size=40,
)
CUTS = st.lists(st.integers(0, 200), max_size=8)


def cut_at(items: Any, places: list[int]) -> list[Any]:
    edges = sorted({0, len(items), *(place % (len(items) + 1) for place in places)})
    return [items[start:stop] for start, stop in pairwise(edges)]


def run(pieces: list[Any], finish: str = "stop", **options: Any) -> tuple[Any, list[OutputEvent]]:
    reader, builder, events = parser(**options), AnswerBuilder(), []
    for piece in pieces:
        events += reader.feed_text(piece) if isinstance(piece, str) else reader.feed(piece)
    events += reader.finish(finish)
    builder.add(events)
    return (plain(builder.build(reader)), reader.reasoning_tokens, merged(events)), events


def merged(events: list[OutputEvent]) -> list[tuple[Any, ...]]:
    """Events with adjacent pieces of the same text joined, without ids."""
    joined: list[list[Any]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            joined.append([ToolCallStart, event.index, event.name])
            continue
        key = [type(event), getattr(event, "index", None)]
        text = event.reason if isinstance(event, Finish) else event.text
        if joined and joined[-1][:2] == key:
            joined[-1][2] += text
        else:
            joined.append([*key, text])
    return [tuple(each) for each in joined]


def soup_ids(soup: list[int | str]) -> list[int]:
    ids: list[int] = []
    for piece in soup:
        ids += [piece] if isinstance(piece, int) else TOKENIZER.encode_text(piece).tolist()
    return ids


@given(VALUES, VALUES, CALLS, CUTS)
def test_any_cut_of_a_regular_answer_gives_it_whole_and_shows_no_marker(
    reasoning: str, response: str, calls: list[Any], places: list[int]
) -> None:
    markup = turn(
        reasoning,
        response,
        tools(*(call(name, *(argument(*each) for each in elements)) for name, elements in calls)),
    )
    ids = ids_of(markup)
    result, events = run(cut_at(ids, places))
    assert result == run([ids])[0]
    assert result[0] == run(cut_at(markup, places))[0][0]
    assert result[0][:2] == (reasoning, response)
    assert [name for name, _ in result[0][2]] == [name for name, _ in calls]
    for (_, elements), (_, arguments) in zip(calls, result[0][2], strict=True):
        assert list(json.loads(arguments)) == list(dict.fromkeys(key for key, _, _ in elements))
    shown = "".join(event.text for event in events if isinstance(event, ReasoningDelta | ContentDelta))
    assert not any(marker in shown for marker in MARKERS)


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, CUTS)
def test_text_in_ordinary_tokens_comes_back_exactly_whatever_it_spells(
    reasoning: str, response: str, value: str, places: list[int]
) -> None:
    skeleton = turn("\x00", "\x00", tools(call("run", argument("k", "\x00")))).split("\x00")
    ids: list[int] = []
    for markup, text in zip(skeleton, (reasoning, response, value, ""), strict=True):
        ids += ids_of(markup) + TOKENIZER.encode_text(text).tolist()
    (answer, _, _), _ = run(cut_at(ids, places))
    assert answer == (
        reasoning,
        response,
        [("run", json.dumps({"k": value}, ensure_ascii=False))],
        "tool_calls",
    )


@given(SOUP, CUTS, st.booleans(), st.sampled_from([TOOLS, None]), st.sampled_from(["stop", "length"]))
def test_any_tokens_give_the_same_events_however_they_are_cut(
    soup: list[int | str], places: list[int], thinking: bool, declared: Any, finish: str
) -> None:
    ids = soup_ids(soup)
    whole, events = run([ids], finish, thinking=thinking, tools=declared)
    assert run([[token] for token in ids], finish, thinking=thinking, tools=declared)[0] == whole
    assert run(cut_at(ids, places), finish, thinking=thinking, tools=declared)[0] == whole
    assert [event for event in events if isinstance(event, Finish)] == events[-1:]


@given(SOUP, CUTS)
def test_any_text_gives_the_same_events_however_it_is_cut(soup: list[int | str], places: list[int]) -> None:
    text = TOKENIZER.decode(soup_ids(soup))
    whole = run([text])[0]
    assert run(list(text))[0] == whole
    assert run(cut_at(text, places))[0] == whole


@given(SOUP)
def test_arguments_of_complete_calls_are_json_objects(soup: list[int | str]) -> None:
    # A `json` element is passed on as it is, so there is none in this soup.
    ids = [*ids_of("<|close|>think<|sep|>"), *soup_ids([piece for piece in soup if piece != "json"])]
    (answer, _, _), events = run([[token] for token in ids])
    for _, arguments in answer[2]:
        assert isinstance(json.loads(arguments, parse_constant=None), dict)
    starts = [event.index for event in events if isinstance(event, ToolCallStart)]
    assert starts == list(range(len(starts)))
    seen: set[int] = set()
    for event in events:
        if isinstance(event, ToolCallStart):
            seen.add(event.index)
        elif isinstance(event, ToolArgumentsDelta):
            assert event.index == max(seen)
