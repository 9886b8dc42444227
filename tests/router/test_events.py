from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    GroupKind,
    KvEvent,
    MalformedEventError,
    decode_batch,
)
from router.tiers import Tier
from tests.router.wire import payload, tokens

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 5],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def one(event: Any) -> KvEvent:
    (decoded,) = decode_batch(payload(event)).events
    return decoded


def store(**fields: Any) -> BlockStored:
    event = one({**STORED, **fields})
    assert isinstance(event, BlockStored)
    return event


def test_a_batch_of_maps() -> None:
    events = [
        STORED,
        {"type": "BlockRemoved", "block_hashes": [7], "group_idx": 2},
        {"type": "AllBlocksCleared"},
    ]
    batch = decode_batch(msgspec.msgpack.encode([12.5, events, 3]))
    assert (batch.timestamp, batch.dp_rank, batch.unknown) == (12.5, 3, 0)
    assert batch.events == [
        BlockStored(
            block_hashes=[2**64 - 1, 5], parent=None, token_ids=tokens([1, 2, 3, 4]).tobytes(), block_size=2
        ),
        BlockRemoved(block_hashes=[7], group=2),
        AllBlocksCleared(),
    ]


def test_a_batch_may_be_shorter_or_longer() -> None:
    assert decode_batch(msgspec.msgpack.encode([1.0, []])).dp_rank is None
    assert decode_batch(msgspec.msgpack.encode([1.0, [], None, "later"])).events == []


def test_hashes_may_be_signed_or_whole_digests() -> None:
    event = store(block_hashes=[-5, 2**63], parent_block_hash=-1)
    assert (event.block_hashes, event.parent) == ([-5, 2**63], -1)
    event = store(block_hashes=[b"\x01" * 32, b"\x02" * 32], parent_block_hash=b"\x03" * 32)
    assert (event.block_hashes, event.parent) == ([b"\x01" * 32, b"\x02" * 32], b"\x03" * 32)


def test_unknown_keys_are_ignored_and_optional_ones_may_miss() -> None:
    assert store(session_id={"any": "thing"}, locality="LOCAL", ownership=9) == store()
    event = one({"type": "BlockStored", "block_hashes": [1]})
    assert event == BlockStored(block_hashes=[1], parent=None, token_ids=b"", block_size=0)
    assert one({"type": "BlockRemoved", "block_hashes": []}) == BlockRemoved(block_hashes=[])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (None, GroupKind.ATTENTION),
        ("full_attention", GroupKind.ATTENTION),
        ("mla_attention", GroupKind.ATTENTION),
        ("mamba", GroupKind.STATE),
        ("sliding_window", GroupKind.STATE),
        ("cross_attention", GroupKind.IGNORED),
        ("of_next_year", GroupKind.IGNORED),
    ],
)
def test_kinds(name: str | None, kind: GroupKind) -> None:
    event = store(kv_cache_spec_kind=name, group_idx=3)
    assert (event.kind, event.group) == (kind, 3)
    assert bool(event.token_ids) == (kind is GroupKind.ATTENTION)


def test_a_window_belongs_to_a_state_group() -> None:
    assert store(kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=64).window == 64
    assert store(kv_cache_spec_kind="full_attention", kv_cache_spec_sliding_window=64).window == 0


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({"medium": None}, Tier.DEVICE),
        ({"medium": "GPU", "locality": "LOCAL"}, Tier.DEVICE),
        ({"medium": "CPU"}, Tier.HOST),
        ({"medium": "CPU_PINNED"}, Tier.HOST),
        ({"medium": "DISK"}, Tier.DISK),
        ({"medium": "STORAGE"}, Tier.DISK),
        ({"medium": "EXTERNAL"}, None),
        ({"medium": "of later"}, None),
        ({"medium": "GPU", "locality": "REMOTE"}, None),
    ],
)
def test_tiers(fields: dict[str, Any], tier: Tier | None) -> None:
    assert store(**fields).tier is tier
    removed = one({"type": "BlockRemoved", "block_hashes": [1], **fields})
    assert isinstance(removed, BlockRemoved)
    assert removed.tier is tier


def test_the_salt_is_vllms_bare_string_in_the_first_block() -> None:
    event = store(extra_keys=[["tenant"], None])
    assert (event.cache_salt, event.lora, event.extras) == ("tenant", None, None)
    assert store(extra_keys=[["tenant"], None], parent_block_hash=9).cache_salt is None


def test_the_salt_is_sglangs_field() -> None:
    assert store(cache_salt="tenant").cache_salt == "tenant"


def test_an_adapter_is_named_in_every_block_and_is_no_salt() -> None:
    event = store(lora_name="sql", lora_id=4, extra_keys=[["sql", "tenant"], ["sql"]])
    assert (event.lora, event.cache_salt, event.extras) == ("sql", "tenant", None)
    assert store(lora_name="x", extra_keys=[["x", "x"], ["x"]]).cache_salt == "x"
    assert store(lora_id=4).lora == "id:4"


def test_images_and_embeddings_stay_with_their_block() -> None:
    event = store(extra_keys=[[["image-1", 0], "tenant"], [["image-1", -2], b"digest"]])
    assert event.cache_salt == "tenant"
    assert event.extras is not None
    assert sorted(event.extras) == [0, 1]
    assert event.extras[0] != event.extras[1]


def test_bigram_ids_give_their_first_halves() -> None:
    assert store(token_ids=[[1, 2], [2, 3], [3, 4], [4, 5]]).token_ids == tokens([1, 2, 3, 4]).tobytes()


POSITIONAL = ["BlockStored", [8, 9], 7, [1, 2, 3, 4], 2]


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([], {}),
        ([None], {}),
        ([None, "CPU"], {"tier": Tier.HOST}),
        ([None, "GPU", "sql"], {"lora": "sql"}),
        ([None, "GPU", None, [None, None]], {}),
        ([None, "GPU", None, None, 1], {"group": 1}),
        ([None, "GPU", None, None, 1, "mamba", None], {"group": 1, "kind": GroupKind.STATE}),
        ([None, "GPU", None, None, 2, "sliding_window", 64], {"group": 2, "window": 64}),
        ([None, "GPU", None, None, None, 3], {"group": 3}),
        ([None, "GPU", None, None, [None, None], 3, "mamba", None], {"group": 3, "kind": GroupKind.STATE}),
    ],
)
def test_positional_stores_of_every_age(tail: list[Any], expected: dict[str, Any]) -> None:
    event = one([*POSITIONAL, *tail])
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.parent, event.block_size) == ([8, 9], 7, 2)
    assert {name: getattr(event, name) for name in expected} == expected


def test_other_positional_events() -> None:
    assert one(["BlockRemoved", [1], "GPU", 2, "mamba"]) == BlockRemoved(block_hashes=[1], group=2)
    assert one(["BlockRemoved", [1]]) == BlockRemoved(block_hashes=[1])
    assert one(["AllBlocksCleared"]) == AllBlocksCleared()


def test_an_unknown_type_costs_only_itself() -> None:
    batch = decode_batch(payload({"type": "BlockMoved", "to": "CPU"}, ["LoadStat", 1], STORED))
    assert batch.unknown == 2
    assert batch.events == [store()]


@pytest.mark.parametrize(
    "event",
    [
        {**STORED, "block_hashes": "x"},
        {**STORED, "block_hashes": [1.5]},
        {**STORED, "token_ids": [-1]},
        {**STORED, "token_ids": [2**32]},
        {**STORED, "token_ids": ["a"]},
        {**STORED, "token_ids": [[1, 2], 3]},
        {**STORED, "extra_keys": [5]},
        {"type": "BlockStored"},
        {"no": "type"},
        ["BlockRemoved"],
        [],
        [7],
        7,
        None,
    ],
)
def test_malformed_events(event: Any) -> None:
    with pytest.raises(MalformedEventError):
        decode_batch(payload(STORED, event))


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x91", msgspec.msgpack.encode({}), payload(STORED)[:-3], b"\x93" * 99]
)
def test_malformed_payloads(raw: bytes) -> None:
    with pytest.raises(MalformedEventError):
        decode_batch(raw)


@given(st.binary(max_size=60))
def test_no_bytes_crash_it(raw: bytes) -> None:
    with suppress(MalformedEventError):
        decode_batch(raw)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_no_damage_crashes_it(position: int, damage: bytes) -> None:
    raw = bytearray(payload(STORED, ["BlockRemoved", [1]], {"type": "BlockStored", "block_hashes": [b"x"]}))
    raw[position : position + len(damage)] = damage
    with suppress(MalformedEventError):
        decode_batch(bytes(raw))
