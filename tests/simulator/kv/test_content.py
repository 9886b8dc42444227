"""The numbers that KV bytes are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.kv import content
from simulator.kv.content import START, Words, advance, digests, slots

MASK = (1 << 64) - 1


def ids(values: Sequence[int]) -> Words:
    return np.array(values, dtype=np.uint64)


def slowly(start: int, token_ids: Sequence[int]) -> list[int]:
    """The recurrence, one token at a time."""
    numbers = []
    for token_id in token_ids:
        start = (start * content._FACTOR + (token_id + 1) * int(content._MARK_FACTOR)) & MASK
        numbers.append(start)
    return numbers


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=50), st.integers(0, MASK))
def test_the_sum_gives_what_the_loop_gives(token_ids: list[int], start: int) -> None:
    assert advance(np.uint64(start), ids(token_ids)).tolist() == slowly(start, token_ids)


def test_more_tokens_than_one_piece_has() -> None:
    token_ids = [(7 * index) % 163_840 for index in range(content._PIECE * 2 + 100)]
    found = advance(START, ids(token_ids))
    expected = slowly(int(START), token_ids)
    for index in (0, content._PIECE - 1, content._PIECE, content._PIECE + 1, len(token_ids) - 1):
        assert int(found[index]) == expected[index]


@given(st.lists(st.integers(0, 200_000), min_size=2, max_size=60), st.data())
def test_going_on_is_the_same_as_going_through(token_ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(token_ids) - 1))
    whole = advance(START, ids(token_ids))
    assert (advance(whole[cut - 1], ids(token_ids[cut:])) == whole[cut:]).all()


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=40), st.data())
def test_another_token_changes_all_that_follows(token_ids: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(token_ids) - 1))
    other = list(token_ids)
    other[place] += data.draw(st.integers(1, 1000))
    same = advance(START, ids(token_ids)) == advance(START, ids(other))
    assert same[:place].all()
    assert not same[place:].any()


def test_a_digest_sees_every_word_and_memory_nobody_wrote_is_never_right() -> None:
    block = slots(advance(START, ids(range(4))), 16).reshape(1, -1)
    (whole,) = digests(block).tolist()
    for word in range(block.shape[1]):
        changed = block.copy()
        changed[0, word] ^= np.uint64(1 << 63)
        assert digests(changed)[0] != whole
    assert (block != 0).all()
