"""Workers with a drafter: blocks whose hash covers tokens after them match, or their worker says why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.events import BlockStored, MalformedEventError, decode_batch
from router.hashing import PrefixHasher
from router.index import PrefixIndex
from router.lookahead import LookaheadChain
from router.messages import WorkerKey
from router.selector import Router
from router.slices import SLICE_BLOCKS, slices
from tests.router.test_selector import info
from tests.router.wire import payload, removed, stored, tokens

KEY = WorkerKey("w")
IDS = list(range(100, 112))
"""Five blocks of two tokens and, with a lookahead of two, nothing to spare."""


def vllm(ids: list[int], lookahead: int, **fields: Any) -> dict[str, Any]:
    """A store of all blocks of two tokens, as vLLM announces it for a drafter."""
    count = (len(ids) - lookahead) // 2
    return {
        "type": "BlockStored",
        "block_hashes": list(range(1, count + 1)),
        "parent_block_hash": None,
        "token_ids": ids[: 2 * count],
        "block_size": 2,
        "lookahead_token_ids": [ids[2 * n + 2 : 2 * n + 2 + lookahead] for n in range(count)],
        **fields,
    }


def eagle(ids: list[int]) -> dict[str, Any]:
    """The same as SGLang announces it: pairs of overlapping tokens."""
    count = (len(ids) - 1) // 2
    return {
        "type": "BlockStored",
        "block_hashes": list(range(-count, 0)),
        "parent_block_hash": None,
        "token_ids": [[ids[n], ids[n + 1]] for n in range(2 * count)],
        "block_size": 2,
        "medium": "GPU",
    }


def router_with(*events: dict[str, Any]) -> Router:
    router = Router("kv", seed=1)
    router.add_worker(info("w"))
    router.apply(KEY, decode_batch(payload(*events)).events)
    return router


def found(event: dict[str, Any], ids: list[int]) -> int:
    index = PrefixIndex(PrefixHasher(1))
    source = index.open(KEY)
    index.apply(source, decode_batch(payload(event)).events)
    return index.find(tokens(ids)).get(source, 0)


@pytest.mark.parametrize(("event", "lookahead"), [(vllm(IDS, 2), 2), (vllm(IDS, 1), 1), (eagle(IDS), 1)])
def test_a_block_counts_where_the_tokens_after_it_are_the_same_too(event: Any, lookahead: int) -> None:
    whole = 2 * ((len(IDS) - lookahead) // 2)
    assert found(event, IDS) == whole
    assert found(event, [*IDS, 7, 8, 9]) == whole
    for same in range(len(IDS) + 1):
        parted = [*IDS[:same], *[1] * 9]
        assert found(event, parted) == max(0, 2 * ((same - lookahead) // 2)), same


def test_the_last_token_is_always_computed() -> None:
    assert found(vllm(IDS, 1), IDS[:9]) == 8
    assert found(vllm(IDS, 1), IDS[:8]) == 6
    assert found(vllm(IDS, 2), IDS[:9]) == 6


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4), st.integers(1, 5), st.integers(0, 60))
def test_chains_agree_exactly_as_deep_as_block_and_lookahead_do(
    ids: list[int], block_size: int, lookahead: int, cut: int
) -> None:
    other = [*ids[:cut], 9, 9, 9]
    same = min(cut, len(ids))
    one, two = (LookaheadChain(tokens(each), block_size, lookahead, root=5) for each in (ids, other))
    one.end(), two.end()
    assert len(one.hashes) == max(len(ids) - lookahead, 0) // block_size
    agree = sum(a == b for a, b in zip(one.hashes, two.hashes, strict=False))
    assert agree == max(same - lookahead, 0) // block_size


def test_removal_parents_and_what_else_a_block_covers() -> None:
    index = PrefixIndex(PrefixHasher(1))
    source = index.open(KEY)
    first = vllm(IDS[:6], 2)
    rest = vllm(IDS[4:], 2, block_hashes=[8, 9, 10], parent_block_hash=2)
    index.apply(source, decode_batch(payload(rest, first)).events)
    assert index.find(tokens(IDS)) == {source: 10}, "what continues an unknown block waits for it"
    index.apply(source, [removed([9])])
    assert index.find(tokens(IDS)) == {source: 6}
    image = vllm(IDS, 2, extra_keys=[None, [["image", 0]], None, None, None])
    assert found(image, IDS) == 2


def test_sliced_stores_keep_their_lookahead() -> None:
    ids = list(range(4 * SLICE_BLOCKS + 2))
    (event,) = decode_batch(payload(vllm(ids, 2))).events
    index = PrefixIndex(PrefixHasher(1))
    source = index.open(KEY)
    for part in slices([event]):
        index.apply(source, part)
    assert index.find(tokens(ids)) == {source: 4 * SLICE_BLOCKS}


def test_both_kinds_side_by_side_and_a_clear() -> None:
    router = router_with(vllm(IDS, 2))
    router.add_worker(info("plain"))
    router.apply(WorkerKey("plain"), [stored([1, 2, 3], IDS[:6])])
    lookup = router._index._lookup
    assert set(lookup.peeking) == {(2, 2)}
    assert set(lookup.sizes) == {2}
    router.clear(KEY)
    assert not lookup.peeking


@pytest.mark.parametrize(
    "fields",
    [
        {"lookahead_token_ids": [[1], [2, 3]], "block_hashes": [1, 2]},
        {"lookahead_token_ids": [[1]], "block_hashes": [1, 2]},
        {"lookahead_token_ids": [[1], [2**32]], "block_hashes": [1, 2]},
        {"token_ids": [[1, 2], [2, 3], [3, 4]]},
        {"token_ids": [[1, 2], [2, 3]], "block_size": 0},
    ],
)
def test_what_makes_no_sense_is_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedEventError):
        decode_batch(payload({**vllm(IDS[:6], 1), **fields}))


def test_a_drafters_blocks_that_cannot_be_placed_make_their_worker_approximate_with_the_reason() -> None:
    router = router_with(
        vllm(IDS[:4], 2),
        *(
            vllm(IDS, 2, parent_block_hash=900 + n, block_hashes=[10 * n + m for m in range(5)])
            for n in (1, 2)
        ),
    )
    (target,) = router.snapshot_stats().targets
    assert target.knowledge == "approximate"
    assert "10 blocks cannot be placed" in target.problem
    assert "cover tokens after each block, which no recipe does" in target.problem


def test_the_decoded_form() -> None:
    (event,) = decode_batch(payload(eagle(IDS[:5]))).events
    assert isinstance(event, BlockStored)
    assert event.token_ids == tokens(IDS[:4]).tobytes()
    assert (event.lookahead, event.following) == (1, tokens([IDS[2], IDS[4]]).tobytes())
