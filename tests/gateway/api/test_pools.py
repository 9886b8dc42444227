"""Pools whose workers take different ids for the same chat, over HTTP."""

from __future__ import annotations

from typing import Any

from gateway.config import PoolSettings
from parsers.base import Chat
from parsers.registry import get_format
from tests.gateway.api.conftest import MODEL, Gateway, gateway
from tests.gateway.raw_worker import hang_up, stream, tokens

POOLS = (PoolSettings(name="new"), PoolSettings(name="old", model_format="kimi_k3_rev_a"))
# The revisions write these arguments differently: as they are spelled, and anew.
HISTORY = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": [1,2,3,4]}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "4"},
]


def answer(*ids: int) -> Any:
    return stream(tokens(*ids), tokens(finish="stop"))


def ids_of(gw: Gateway, format_name: str) -> list[int]:
    model_format = get_format(format_name)
    tokenizer = gw.services.preparer.encodings.all[0].tokenizer
    ids: list[int] = tokenizer.encode_segments(
        model_format.encode(Chat(messages=HISTORY)).pieces
    ).ids.tolist()
    return ids


async def test_each_worker_gets_the_ids_of_its_own_pool_and_usage_counts_them() -> None:
    async with gateway([answer(65)], [answer(65)], pools=POOLS, worker_pools=["new", "old"]) as gw:
        counted = [
            (await (await gw.chat(messages=HISTORY)).json())["usage"]["prompt_tokens"] for _ in range(2)
        ]
        sent = [worker.requests[0][1]["token_ids"] for worker in gw.workers]
        assert sent == [ids_of(gw, "kimi_k3"), ids_of(gw, "kimi_k3_rev_a")]
        assert sent[0] != sent[1]
        assert sorted(counted) == sorted(len(ids) - 3 for ids in sent)


async def test_another_pools_worker_takes_over_with_its_own_ids() -> None:
    async with gateway([hang_up] * 2, [answer(65)] * 2, pools=POOLS, worker_pools=["new", "old"]) as gw:
        for _ in range(2):
            assert (await gw.chat(messages=HISTORY)).status == 200
        assert [body["token_ids"] for _, body in gw.workers[1].requests] == [ids_of(gw, "kimi_k3_rev_a")] * 2


async def test_one_tokenizer_serves_both_revisions() -> None:
    async with gateway([answer(65)], pools=POOLS, worker_pools=["new"]) as gw:
        one, other = gw.services.preparer.encodings.all
        assert one.tokenizer is other.tokenizer
        response = await gw.chat()
        assert response.status == 200
        text = await (await gw.get("/metrics")).text()
    assert 'kvgateway_segment_cache_hits_total{pool="new"}' in text
    assert 'pool="old"' not in text


async def test_only_the_encodings_of_pools_that_serve_the_model_are_made() -> None:
    async with gateway([answer(65)], pools=POOLS, worker_pools=["new"]) as gw:
        chosen = gw.services.preparer.encodings.of_pools(gw.services.fleet.pools(MODEL))
        assert [encoding.model_format.name for encoding in chosen] == ["kimi_k3"]
