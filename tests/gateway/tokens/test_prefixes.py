from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokens.prefixes import Prefixes
from gateway.tokens.prompts import EncodedPrompt
from gateway.tokens.segment_cache import EncodedSegment
from parsers.base import Piece, Segment, SegmentRun

RUN = SegmentRun.of(Segment("<|open|>", True), Segment("x", False))


def part_of(piece: Piece) -> EncodedSegment:
    """Ids that tell a piece: its characters."""
    ids = list(piece[0].encode())
    return EncodedSegment(np.array(ids, np.uint32).tobytes(), ",".join(map(str, ids)).encode())


def pieces_of(texts: str | Sequence[str]) -> list[Piece]:
    return [RUN if text == "R" else Segment(text, False) for text in texts]


def ask(prefixes: Prefixes, pieces: list[Piece]) -> tuple[EncodedPrompt, int]:
    found, shared = prefixes.find(pieces)
    parts = [part_of(piece) for piece in pieces[shared:]]
    return prefixes.join(found, shared, pieces, parts), shared


def check(prompt: EncodedPrompt, pieces: list[Piece]) -> None:
    expected = [byte for piece in pieces for byte in piece[0].encode()]
    assert prompt.ids.tolist() == expected
    assert prompt.ids_json == ",".join(map(str, expected)).encode()


def test_the_next_turn_takes_all_of_the_last_one_from_what_is_kept() -> None:
    prefixes = Prefixes(1_000_000)
    assert ask(prefixes, pieces_of("Rabc"))[1] == 0
    prompt, shared = ask(prefixes, pieces_of("Rabcde"))
    assert shared == 4
    check(prompt, pieces_of("Rabcde"))
    assert len(prefixes) == 1


def test_a_conversation_that_parts_shares_what_comes_before() -> None:
    prefixes = Prefixes(1_000_000)
    first, _ = ask(prefixes, pieces_of("Rabcd"))
    other, shared = ask(prefixes, pieces_of("RabXY"))
    assert shared == 3
    check(first, pieces_of("Rabcd"))
    check(other, pieces_of("RabXY"))
    assert len(prefixes) == 2


def test_the_same_prompt_again_keeps_nothing_new() -> None:
    prefixes = Prefixes(1_000_000)
    ask(prefixes, pieces_of("Rabcd"))
    for texts in ("Rabcd", "Rab"):
        prompt, shared = ask(prefixes, pieces_of(texts))
        assert shared == len(texts)
        check(prompt, pieces_of(texts))
    assert len(prefixes) == 1


def test_hashes_go_on_with_a_prompt_and_stop_where_another_parts() -> None:
    prefixes = Prefixes(1_000_000)
    first, _ = ask(prefixes, pieces_of("abcd"))
    assert first.hashes is not None
    first.hashes.chain(1, 0).extend([1, 2, 3, 4])
    longer, _ = ask(prefixes, pieces_of("abcde"))
    parted, _ = ask(prefixes, pieces_of("abX"))
    assert longer.hashes is not None
    assert parted.hashes is not None
    assert longer.hashes.chain(1, 0) == [1, 2, 3, 4]
    assert parted.hashes.chain(1, 0) == [1, 2]
    assert parted.hashes.chain(1, 7) == []


def test_the_least_recently_used_goes_first() -> None:
    prefixes = Prefixes(30_000)
    for texts in ("ab", "cd", "ab", "ef", "gh", "ab"):
        ask(prefixes, pieces_of([letter * 500 for letter in texts]))
        assert prefixes.bytes_used <= prefixes.max_bytes
    assert ask(prefixes, pieces_of(["a" * 500, "b" * 500]))[1] == 2
    assert ask(prefixes, pieces_of(["c" * 500, "d" * 500]))[1] == 0


def test_a_prompt_that_would_fill_the_half_is_not_kept() -> None:
    prefixes = Prefixes(8_000)
    prompt, _ = ask(prefixes, pieces_of(["a" * 5_000]))
    check(prompt, pieces_of(["a" * 5_000]))
    assert (len(prefixes), prefixes.bytes_used) == (0, 0)


def test_a_prompt_that_was_given_out_never_changes() -> None:
    prefixes = Prefixes(1_000_000)
    given_out: list[tuple[EncodedPrompt, Any]] = []
    for texts in ("ab", "abc", "abcd", "abX", "abXY", "abcde", "ab", "abcdZ"):
        given_out.append((ask(prefixes, pieces_of(texts))[0], pieces_of(texts)))
        for prompt, pieces in given_out:
            check(prompt, pieces)


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from("Rabc"), min_size=1, max_size=12), max_size=12), st.integers(0, 9_000)
)
def test_what_is_kept_never_shows_in_the_ids(prompts: list[list[str]], max_bytes: int) -> None:
    prefixes = Prefixes(max_bytes)
    for texts in prompts:
        pieces = pieces_of(texts)
        check(ask(prefixes, pieces)[0], pieces)
        assert 0 <= prefixes.bytes_used <= max_bytes
