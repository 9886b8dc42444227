from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.hashing import HashMemo, PrefixChain, PrefixHasher, extend_hashes
from tests.router.wire import tokens

HASHER = PrefixHasher(7)
id_lists = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def whole(chain: PrefixChain) -> list[int]:
    while chain.grow():
        pass
    return chain.hashes


@given(id_lists, st.integers(1, 9))
def test_a_lazy_chain_equals_the_chain_of_an_event(ids: list[int], block_size: int) -> None:
    root = HASHER.root()
    chain = PrefixChain(tokens(ids), block_size, root)
    assert whole(chain) == extend_hashes(root, tokens(ids).tobytes(), block_size)
    assert len(chain.hashes) == chain.length == len(ids) // block_size


@given(id_lists, st.integers(1, 5), st.data())
def test_a_chain_goes_on_from_any_of_its_blocks(ids: list[int], block_size: int, data: st.DataObject) -> None:
    raw = tokens(ids).tobytes()
    hashes = extend_hashes(HASHER.root(), raw, block_size)
    cut = data.draw(st.integers(0, len(hashes)))
    parent = hashes[cut - 1] if cut else HASHER.root()
    assert hashes[cut:] == extend_hashes(parent, raw[cut * block_size * 4 :], block_size)


def test_a_chain_is_hashed_in_doubling_strides() -> None:
    chain = PrefixChain(tokens(range(1000)), 1, 0)
    sizes = [len(chain.hashes) for _ in range(5) if chain.grow()]
    assert sizes == [8, 16, 32, 64, 128]


def test_a_chain_can_be_bounded_and_the_tokens_strided() -> None:
    assert len(whole(PrefixChain(tokens(range(100)), 4, 0, length=3))) == 3
    every_other = np.arange(200, dtype=np.uint32)[::2]
    assert whole(PrefixChain(every_other, 4, 0)) == whole(PrefixChain(every_other.copy(), 4, 0))


def test_tokens_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        PrefixChain(np.arange(4, dtype=np.int64), 2, 0)  # type: ignore[arg-type]


def test_one_token_changes_this_hash_and_all_after_it() -> None:
    ids = list(range(32))
    before = extend_hashes(0, tokens(ids).tobytes(), 4)
    ids[9] = 77
    after = extend_hashes(0, tokens(ids).tobytes(), 4)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True] + [False] * 6


def test_what_a_block_holds_beside_tokens_changes_its_hash() -> None:
    raw = tokens(range(8)).tobytes()
    plain = extend_hashes(0, raw, 4)
    image = extend_hashes(0, raw, 4, {1: b"image"})
    assert plain[0] == image[0]
    assert plain[1] != image[1]


def test_roots_keep_salts_adapters_and_routers_apart() -> None:
    roots = [
        HASHER.root(salt, lora)
        for salt in (None, "", "a", "b", "la", "\ud800")
        for lora in (None, "", "a", "b")
    ]
    roots.append(PrefixHasher(8).root())
    assert len(set(roots)) == len(roots)
    assert HASHER.root("a", "b") == PrefixHasher(7).root("a", "b")


class TestMemo:
    @given(id_lists, st.integers(1, 5), st.data())
    def test_a_chain_goes_on_from_what_was_hashed_of_a_shorter_prompt(
        self, ids: list[int], block_size: int, data: st.DataObject
    ) -> None:
        memo, expected = HashMemo(), whole(PrefixChain(tokens(ids), block_size, 3))
        for size in sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3))):
            shorter = PrefixChain(tokens(ids[:size]), block_size, 3, memo=memo)
            assert whole(shorter) == expected[: size // block_size]
        assert whole(PrefixChain(tokens(ids), block_size, 3, memo=memo)) == expected
        assert (
            whole(PrefixChain(tokens(ids[:9]), block_size, 3, memo=memo))
            == expected[: min(9, len(ids)) // block_size]
        )

    def test_what_is_known_is_not_hashed_again(self) -> None:
        memo = HashMemo()
        memo.chain(4, 3).extend(range(7))
        assert whole(PrefixChain(tokens(range(28)), 4, 3, memo=memo)) == list(range(7))

    def test_a_fork_knows_the_whole_blocks_that_are_shared(self) -> None:
        memo = HashMemo()
        memo.chain(4, 3).extend(range(7))
        assert memo.fork(11).chain(4, 3) == [0, 1]
        assert memo.fork(0).chain(4, 3) == []
        memo.fork(8).chain(4, 3).append(9)
        assert memo.chain(4, 3) == list(range(7))

    def test_salts_and_block_sizes_do_not_pile_up(self) -> None:
        memo = HashMemo()
        for root in range(100):
            memo.chain(4, root).append(root)
        assert memo.chain(4, 99) == [99]
        assert memo.chain(4, 0) == []
