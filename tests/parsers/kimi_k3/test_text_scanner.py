from __future__ import annotations

import pytest

from parsers.kimi_k3.markers import CLOSE_ID, END_OF_MSG_ID, OPEN_ID, SEP_ID
from parsers.kimi_k3.text_scanner import TextScanner
from tests.parsers.kimi_k3.material import answer_of, end, read, tag, turn


def test_markers_become_control_ids() -> None:
    pieces = list(TextScanner().feed("a<|open|>think<|sep|>b<|close|>c<|end_of_msg|>"))
    assert pieces == ["a", OPEN_ID, "think", SEP_ID, "b", CLOSE_ID, "c", END_OF_MSG_ID]


def test_a_marker_cut_anywhere_is_one() -> None:
    for at in range(1, len("<|close|>")):
        scanner = TextScanner()
        assert [*scanner.feed("a" + "<|close|>"[:at]), *scanner.feed("<|close|>"[at:] + "b")] == [
            "a",
            CLOSE_ID,
            "b",
        ]


@pytest.mark.parametrize(
    "text", ["<", "<|", "a <| b", "<|op en|>", "<|<|<", "<|open", "if a<b", "<|end_of_ms>"]
)
def test_what_is_no_marker_comes_out_whole(text: str) -> None:
    scanner = TextScanner()
    pieces = [piece for char in text + "." for piece in scanner.feed(char)]
    assert "".join(map(str, pieces)) + scanner.finish() == text + "."


def test_nothing_but_the_beginning_of_a_marker_is_held_back() -> None:
    assert list(TextScanner().feed("text <|clo")) == ["text "]
    assert list(TextScanner().feed("text <|clx")) == ["text <|clx"]


@pytest.mark.parametrize(("held", "kept"), [("<", "<"), ("<|", "<|"), ("<|c", ""), ("<|end_of_msg|", "")])
def test_at_the_end_the_beginning_of_a_marker_is_dropped_but_not_a_texts_own_end(
    held: str, kept: str
) -> None:
    scanner = TextScanner()
    assert list(scanner.feed("x" + held)) == ["x"]
    assert scanner.finish() == kept


def test_an_answer_cut_inside_a_tags_last_marker_shows_no_tag() -> None:
    answer = answer_of(["ans<|close|>response<"], thinking=False, finish="length")
    assert answer.content == "ans"


def test_a_text_that_ends_like_a_marker_begins_keeps_its_end() -> None:
    assert read(turn("a <", "b <|")).content == "b <|"
    assert read("a <", finish="length").reasoning == "a <"


def test_markers_with_space_inside_are_markers() -> None:
    markup = tag(" think ") + "r" + end(" think ") + tag(" response ") + "a" + end(" response ")
    answer = read(markup)
    assert (answer.reasoning, answer.content) == ("r", "a")
