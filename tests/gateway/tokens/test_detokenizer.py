from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.detokenizer import IncrementalDetokenizer, TokenTable

# An id is a byte; two more are a whole word and a character with half of the next.
WORD, ONE_AND_A_HALF = 256, 257
TABLE = TokenTable([*(bytes([byte]) for byte in range(256)), b" word", "é".encode() + b"\xc3"])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"))


def push_all(ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(TABLE)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@given(TEXT)
def test_text_comes_out_whole_and_never_half_a_character(text: str) -> None:
    pieces = push_all(list(text.encode()))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.binary())
def test_any_bytes_give_what_python_makes_of_them(data: bytes) -> None:
    assert "".join(push_all(list(data))) == data.decode(errors="replace")


def test_a_character_comes_with_its_last_byte() -> None:
    assert push_all(list("🙂".encode())) == ["", "", "", "🙂", ""]


def test_a_token_may_end_one_character_and_begin_the_next() -> None:
    assert push_all([ONE_AND_A_HALF, 0xA9, WORD]) == ["é", "é", " word", ""]


def test_bytes_that_can_become_no_character_are_replaced_in_place() -> None:
    assert push_all([0xC3, WORD]) == ["", "\ufffd word", ""]


def test_the_end_replaces_what_is_held_back_and_leaves_nothing() -> None:
    detokenizer = IncrementalDetokenizer(TABLE)
    detokenizer.push(0xC3)
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert detokenizer.push(ord("a")) == "a"


@pytest.mark.parametrize("before", [[], [0xC3]])
def test_an_unknown_id_is_no_text(before: list[int]) -> None:
    assert push_all([*before, 10_000])[len(before)] == ""


def test_bytes_are_known_by_id() -> None:
    assert TABLE.bytes_of(WORD) == b" word"
    assert TABLE.bytes_of(0xC3) == b"\xc3"
    assert TABLE.bytes_of(10_000) == b""
