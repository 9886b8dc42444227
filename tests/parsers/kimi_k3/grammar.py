"""Kimi-K3 answers made up from their grammar, right and damaged, each with what must come of it.

An answer is built channel by channel; each part adds its tokens and, by the rules of the protocol alone,
what a client must get. Nothing here reads tokens: the expectation is made, not parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from parsers.base import Segment
from tests.parsers.kimi_k3.material import MARKERS

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Expected(NamedTuple):
    """What a client gets of a whole answer."""

    reasoning: str
    content: str
    calls: list[tuple[str, str]]
    finish: str


class Made(NamedTuple):
    """An answer as tokens, and what must come of it."""

    thinking: bool
    segments: list[Segment]
    expected: Expected


# Text in ordinary tokens, which may spell any marker.
_CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.lists(_CHARACTERS | st.sampled_from([*MARKERS, "response", " ", "think"]), max_size=6).map("".join)
NAMES = st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=5)
VALUES: dict[str, st.SearchStrategy[str]] = {
    "string": TEXT,
    "number": st.integers().map(str) | st.sampled_from(["1e2", "0.10", "NaN", "01", "x"]),
    "boolean": st.sampled_from(["true", "false", "yes"]),
    "null": st.sampled_from(["null", "None"]),
    "array": st.sampled_from(["[1, 2]", "[ ]", "[1", '["é"]']),
    "object": st.sampled_from(["{}", '{"a":  1}', "{"]),
}


class _Maker:
    """Draws one answer."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.segments: list[Segment] = []
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.over = False
        """The message has ended, or the stream has been cut: nothing more counts."""
        self.cut = False

    # tokens

    def text(self, text: str) -> str:
        if text:
            self.segments.append(Segment(text, False))
        return text

    def control(self, marker: str) -> None:
        self.segments.append(Segment(marker, True))

    def tag(self, marker: str, body: str) -> None:
        """A whole tag; its body in one or several pieces, as tokens may cut it."""
        self.control(marker)
        at = self.draw(st.integers(0, len(body)))
        self.text(body[:at])
        self.text(body[at:])
        self.control("<|sep|>")

    def open(self, name: str, **attributes: str) -> None:
        written = (
            f' {key}="{value.replace("&", "&amp;").replace(chr(34), "&quot;")}"'
            for key, value in attributes.items()
        )
        self.tag("<|open|>", name + "".join(written))

    def close(self, name: str) -> None:
        self.tag("<|close|>", name)

    def one_of(self, *choices: str) -> str:
        chosen: str = self.draw(st.sampled_from(choices))
        return chosen

    # channels

    def shown(self) -> str:
        """Text of a channel that shows it, with tags that no answer has."""
        parts = [self.text(self.draw(TEXT))]
        if self.draw(st.booleans()) and self.draw(st.booleans()):
            marker, name = self.one_of("<|open|>", "<|close|>"), self.one_of("foo", "b", "answer")
            self.tag(marker, name)
            parts.append(marker + name + "<|sep|>")
            parts.append(self.text(self.draw(TEXT)))
        return "".join(parts)

    def debris(self) -> None:
        """Text where none belongs."""
        self.text(self.draw(TEXT))

    def end_message(self, *, how: str) -> None:
        if how in ("closed", "both"):
            self.close("message")
        if how in ("ended", "both"):
            self.control("<|end_of_msg|>")
        self.over = True
        self.debris()

    def stop_here(self) -> None:
        """The stream ends, perhaps inside a tag."""
        self.over = self.cut = True
        match self.one_of("clean", "marker", "tag"):
            case "marker":
                self.control(self.one_of("<|open|>", "<|close|>"))
            case "tag":
                self.control(self.one_of("<|open|>", "<|close|>"))
                self.text(self.one_of("t", "think", "response", "call", "argum"))

    def think(self) -> str:
        """The reasoning; says what comes next."""
        thought = self.shown()
        if self.draw(st.booleans()) and self.draw(st.booleans()):
            self.open("think")  # the model repeats its opener
            thought += self.shown()
        way = self.one_of("closed", "closed", "closed", "response", "tools", "message", "cut", "bare")
        if way == "bare":
            # Only the response's end comes: this was the response.
            self.content.append(thought)
            self.close("response")
            return "tools"
        self.reasoning.append(thought)
        match way:
            case "closed":
                self.close("think")
                return self.one_of("response", "response", "tools", "end")
            case "message":
                self.end_message(how=self.one_of("closed", "ended", "both"))
            case "cut":
                self.stop_here()
        return way

    def respond(self, *, opened: bool) -> str:
        if not opened:
            self.open("response")
        self.content.append(self.shown())
        way = self.one_of("closed", "closed", "closed", "tools", "message", "cut")
        match way:
            case "closed":
                self.close("response")
                self.debris()
                return self.one_of("tools", "end")
            case "message":
                self.end_message(how=self.one_of("closed", "ended", "both"))
            case "cut":
                self.stop_here()
        return way

    def tools(self) -> None:
        self.open("tools")
        self.debris_in_tools()
        for index in range(self.draw(st.integers(0, 3))):
            if not self.over:
                self.call(index)
        if self.over:
            return
        if self.one_of("closed", "closed", "missing") == "closed":
            self.close("tools")
            self.debris()

    def debris_in_tools(self) -> None:
        if self.draw(st.booleans()):
            self.debris()

    def call(self, index: int) -> None:
        """One call; a damaged one counts when it has a complete element and no value is cut."""
        named = self.one_of("named", "named", "named", "nameless") == "named"
        name = self.draw(NAMES | st.just('a"&b')) if named else ""
        place = {"index": str(self.draw(st.integers(0, 99)))}
        self.open("call", **({"tool": name} if named else {}), **place)
        arguments, whole = self.elements()
        if self.over:
            return
        if self.one_of("closed", "closed", "closed", "missing") == "closed":
            self.close("call")
        elif not whole:
            # Neither an element nor an end: when another call begins, this one never was. When the channel
            # or the message ends instead, that is its end.
            self.open("call", tool="again", index="1")
            name, named = "again", True
            self.close("call")
        self.debris_in_tools()
        if named:
            self.calls.append((name, arguments))

    def elements(self) -> tuple[str, bool]:
        """A call's arguments as JSON text, and whether it has any element."""
        if self.one_of("arguments", "arguments", "json") == "json":
            self.open("json", **({"type": "object"} if self.draw(st.booleans()) else {}))
            raw = self.draw(TEXT.filter(bool))
            self.text(raw)
            if self.value_is_cut():
                return "", False
            self.close("json")
            return raw, True
        members = []
        for _ in range(self.draw(st.integers(0, 3))):
            key, kind = self.draw(NAMES), self.one_of(*VALUES, "odd", "")
            self.open("argument", key=key, **({"type": kind} if kind else {}))
            text = self.text(self.draw(VALUES.get(kind, TEXT)))
            if self.value_is_cut():
                return "", False
            self.close("argument")
            members.append(f"{_quoted(key)}: {_written(kind, text)}")
        return "{" + ", ".join(members) + "}", bool(members)

    def value_is_cut(self) -> bool:
        """Now and then the stream or the message ends inside a value: its call is none."""
        match self.one_of(*["whole"] * 8, "cut", "message"):
            case "cut":
                self.stop_here()
            case "message":
                self.end_message(how=self.one_of("closed", "ended"))
        return self.over

    def made(self, thinking: bool, reason: str) -> Made:
        finish = "tool_calls" if reason == "stop" and self.calls else reason
        expected = Expected("".join(self.reasoning), "".join(self.content), self.calls, finish)
        return Made(thinking, self.segments, expected)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _written(kind: str, text: str) -> str:
    """A value as the arguments have it: JSON as it is spelled, everything else a string."""
    if kind not in VALUES or kind == "string":
        return _quoted(text)
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return _quoted(text)
    return text.strip()


def _refuse(name: str) -> float:
    raise ValueError(name)


@st.composite
def answers(draw: Draw) -> Made:
    """Any answer of the grammar, with the damage that models do."""
    maker = _Maker(draw)
    thinking = draw(st.booleans())
    following = maker.think() if thinking else "response"
    if following == "response" and not maker.over:
        following = maker.respond(opened=not thinking)
    if following == "tools" and not maker.over:
        maker.tools()
    if not maker.over:
        maker.end_message(how=maker.one_of("closed", "ended", "both"))
    return maker.made(thinking, "length" if maker.cut else draw(st.sampled_from(["stop", "length"])))


def cut(items: Sequence[Any], places: Sequence[int]) -> list[Sequence[Any]]:
    """The items in groups that end at these places."""
    edges = sorted({0, len(items), *(place % (len(items) + 1) for place in places)})
    return [items[start:stop] for start, stop in pairwise(edges)]
