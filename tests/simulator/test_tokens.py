"""Ids to text, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simulator.tokens import TextStream, Tokens

END = 163_586
OPEN = 163_587


def _texts(
    tokens: Tokens, ids: Sequence[int], *, special: bool = False, stop: Sequence[str] = ()
) -> list[str]:
    stream = TextStream(tokens, skip_special=not special, stop=stop)
    return [stream.steps([token_id], last=place == len(ids) - 1) for place, token_id in enumerate(ids)]


def test_a_character_comes_with_its_last_byte(tokens: Tokens) -> None:
    assert _texts(tokens, list("a☂b".encode())) == ["a", "", "", "☂", "b"]


def test_half_a_character_at_the_end_is_gone(tokens: Tokens) -> None:
    assert _texts(tokens, list("a☂".encode())[:-1]) == ["a", "", ""]


def test_bytes_that_make_no_character_come_with_the_next_one(tokens: Tokens) -> None:
    assert _texts(tokens, [97, 0xFF, 98]) == ["a", "", "\ufffdb"]


def test_control_tokens_are_text_where_they_are_wanted(tokens: Tokens) -> None:
    assert _texts(tokens, [97, OPEN, 98, END]) == ["a", "", "b", ""]
    assert _texts(tokens, [97, OPEN, 98, END], special=True) == ["a", "<|open|>", "b", ""]


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("one two", ["STOP"], "one two"),
        ("one STOP", ["STOP"], "one "),
        ("one STO", ["STOP"], "one STO"),
        ("one STOP two", ["STOP", "e S"], "on"),
        ("STOP", ["STOP"], ""),
        ("abc", ["b"], "a"),
    ],
)
def test_nothing_from_a_stop_string_on(tokens: Tokens, text: str, stop: list[str], shown: str) -> None:
    pieces = _texts(tokens, list(text.encode()), stop=stop)
    assert "".join(pieces) == shown


def test_what_could_begin_a_stop_string_waits(tokens: Tokens) -> None:
    """As much as the longest stop string could have of it, as in vLLM."""
    assert _texts(tokens, list(b"abcdef"), stop=["xyz"]) == ["", "", "a", "b", "c", "def"]
