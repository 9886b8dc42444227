"""Stop strings against the rule stated over the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.stops import StopMatcher
from parsers.base import ContentDelta, OutputEvent, ReasoningDelta, ToolCallStart


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include=include)
    events: list[OutputEvent] = []
    for piece in pieces:
        events += matcher.filter([ContentDelta(piece)])
    if matcher.matched is None:
        events += matcher.flush()
    return "".join(event.text for event in events if isinstance(event, ContentDelta)), matcher.matched


def cut(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """The rule: the first position at which some stop string has just been completed."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


texts = st.text(alphabet="abc", max_size=30)


@given(
    text=texts,
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4),
    size=st.integers(1, 30),
    include=st.booleans(),
)
def test_any_cut_stops_where_the_whole_text_does(
    text: str, stops: list[str], size: int, include: bool
) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert run(pieces, stops, include=include) == cut(text, stops, include=include)


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    matcher = StopMatcher(["END"], include=False)
    assert matcher.filter([ContentDelta("xE")]) == [ContentDelta("x")]
    assert matcher.filter([ContentDelta("N")]) == []
    assert matcher.filter([ContentDelta("x")]) == [ContentDelta("ENx")]


def test_nothing_follows_a_match() -> None:
    matcher = StopMatcher(["."], include=False)
    events = [ContentDelta("a.b"), ToolCallStart(0, "id", "f")]
    assert matcher.filter(events) == [ContentDelta("a")]


def test_a_stop_string_does_not_match_across_reasoning_and_content() -> None:
    matcher = StopMatcher(["ab"], include=False)
    out = matcher.filter([ReasoningDelta("xa"), ContentDelta("b")])
    assert matcher.matched is None
    assert [*out, *matcher.flush()] == [ReasoningDelta("x"), ReasoningDelta("a"), ContentDelta("b")]


@given(
    text=texts,
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    armed=st.integers(0, 30),
)
def test_matches_that_end_before_it_is_armed_do_not_count(text: str, stops: list[str], armed: int) -> None:
    matcher, shown = StopMatcher(stops, include=False), ""
    for place, letter in enumerate(text):
        matcher.armed = place >= armed
        shown += "".join(event.text for event in matcher.filter([ContentDelta(letter)]))
    ends = [end for end in range(armed + 1, len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    assert (matcher.matched is not None) == bool(ends)
    if ends:
        longest = max((s for s in stops if text[: ends[0]].endswith(s)), key=len)
        assert shown == text[: max(ends[0] - len(longest), 0)]
