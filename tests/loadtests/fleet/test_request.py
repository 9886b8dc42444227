"""Block ids name prefixes, and tokens follow from them."""

from __future__ import annotations

import numpy as np

from loadtests.fleet.request import BlockNames, token_ids


def test_equal_prefixes_have_equal_ids_up_to_the_last_equal_block() -> None:
    names = BlockNames(16)
    first = names.of([("system", 40), ("a", 40)])
    second = names.of([("system", 40), ("b", 40)])
    assert len(first) == len(second) == 5
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])


def test_a_text_does_not_depend_on_how_it_grew() -> None:
    names = BlockNames(16)
    assert names.of([("a", 20), ("b", 20)])[:1] == names.of([("a", 20)])
    assert names.of([("a", 20), ("b", 44)])[:2] == names.of([("a", 20), ("b", 20)])


def test_the_same_text_after_another_prefix_is_another_block() -> None:
    names = BlockNames(16)
    assert names.of([("a", 16), ("x", 16)])[1] != names.of([("b", 16), ("x", 16)])[1]


def test_tokens_of_equal_blocks_are_equal_and_of_different_ones_are_not() -> None:
    ids = token_ids((5, 6, 7), 40, 16)
    assert ids.dtype == np.uint32
    assert len(ids) == 40
    assert np.array_equal(ids[:32], token_ids((5, 6), 32, 16))
    assert not np.array_equal(ids[:16], ids[16:32])
