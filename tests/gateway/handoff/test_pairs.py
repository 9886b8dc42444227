"""Which workers are never made a pair."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.handoff.pairs import Traits, obstacle

VLLM = Traits(engine="vllm", version="0.32.0", block_size=64, compatibility="aa", labels={"revision": "r1"})
SGLANG = Traits(engine="sglang", version="0.5.23", block_size=64, layout={"kv_cache_dtype": "auto"})


def changed(traits: Traits, **changes: Any) -> Traits:
    return msgspec.structs.replace(traits, **changes)


@pytest.mark.parametrize("same", [VLLM, SGLANG])
def test_two_alike_fit(same: Traits) -> None:
    assert obstacle(same, same) is None


@pytest.mark.parametrize(
    ("prefill", "changes", "reason"),
    [
        (VLLM, {"engine": "sglang"}, "engine: vllm on prefill, sglang on decode"),
        (VLLM, {"version": "0.33.0"}, "version"),
        (VLLM, {"block_size": 32}, "block size: 64 on prefill, 32 on decode"),
        (VLLM, {"labels": {"revision": "r2"}}, "revision"),
        (VLLM, {"compatibility": "bb"}, "compatibility hash"),
        (SGLANG, {"layout": {"kv_cache_dtype": "fp8_e4m3"}}, "kv_cache_dtype"),
        (SGLANG, {"speculation": "EAGLE"}, "speculative decoding: none on prefill, EAGLE on decode"),
    ],
)
def test_one_difference_is_an_obstacle_and_named(
    prefill: Traits, changes: dict[str, Any], reason: str
) -> None:
    decode = changed(prefill, **changes)
    assert (obstacle(prefill, decode) or "").startswith(reason)
    assert obstacle(decode, prefill) is not None


def test_vllms_speculation_is_compared_where_labels_tell_it() -> None:
    prefill = changed(VLLM, labels={"speculation": "dspark"})
    assert obstacle(prefill, VLLM) is None
    assert obstacle(prefill, changed(VLLM, labels={"speculation": "eagle"})) is not None


@pytest.mark.parametrize("name", ["version", "block_size", "compatibility"])
def test_what_is_not_known_is_no_obstacle(name: str) -> None:
    assert obstacle(VLLM, changed(VLLM, **{name: None})) is None


def test_a_required_link_must_be_there_or_a_better_one() -> None:
    labels = {"nvlink_clique": "c", "compute_domain": "d", "rdma": "true"}
    prefill, decode = (changed(VLLM, labels=labels) for _ in range(2))
    assert obstacle(prefill, decode, "rdma") is None
    assert obstacle(prefill, decode, "mnnvl") == "link: rdma, and mnnvl is required"
    with_memory = changed(VLLM, labels={**labels, "cumem": "true"})
    assert obstacle(with_memory, with_memory, "mnnvl") is None
