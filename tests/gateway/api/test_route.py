"""POST /v1/route on the admin listener: the router's choice and its reasons, without a request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from gateway.api.server import admin_runner
from router.cost import CostTerms
from router.events import BlockStored
from router.messages import WorkerInfo, WorkerKey
from tests.gateway.api.conftest import MODEL, Gateway, gateway

IDS = list(range(1, 41))


@asynccontextmanager
async def admin(gw: Gateway) -> AsyncIterator[str]:
    """The URL of the gateway's dry run."""
    runner = await admin_runner(gw.services, shutdown_timeout=0.1)
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/route"
    finally:
        await runner.cleanup()


async def ask(gw: Gateway, body: Any, status: int = 200) -> dict[str, Any]:
    async with admin(gw) as url, aiohttp.ClientSession() as session:
        response = await session.post(url, json=body)
        assert response.status == status
        answer: dict[str, Any] = await response.json()
        return answer


def hold(gw: Gateway, worker: str, ids: list[int]) -> None:
    raw = np.array(ids, dtype=np.uint32).tobytes()
    event = BlockStored(block_hashes=[1, 2], parent=None, token_ids=raw, block_size=16)
    gw.services.router.apply(WorkerKey(worker), [event])


async def test_a_prompt_is_explained_and_nothing_is_sent_or_counted() -> None:
    async with gateway([], []) as gw:
        hold(gw, "w1", IDS[:32])
        before = gw.services.router.snapshot_stats()
        answer = await ask(gw, {"model": MODEL, "prompt": IDS})
        assert gw.services.router.snapshot_stats() == before
        assert [worker.requests for worker in gw.workers] == [[], []]
    assert (answer["model"], answer["prompt_tokens"]) == (MODEL, 40)
    leg = answer["legs"]["aggregated"]
    assert leg["policy"] == "round_robin"
    found = {each["target"]["worker"]: each for each in leg["candidates"]}
    assert found["w1"]["cached_tokens"] == 32
    assert found["w1"]["by_rule"]["attention-only"] == 32
    assert found["w0"]["cached_tokens"] == 0
    assert set(found["w0"]["terms"]) == set(CostTerms.__struct_fields__)
    assert [each["verdict"] for each in leg["candidates"]].count("chosen") == 1


async def test_a_chat_is_encoded_as_it_would_be() -> None:
    async with gateway([]) as gw:
        answer = await ask(gw, {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
    assert answer["prompt_tokens"] > 2
    assert answer["legs"]["aggregated"]["chosen"] == {"worker": "w0", "dp_rank": 0}


async def test_a_pair_has_two_legs_in_one_pool() -> None:
    async with gateway() as gw:
        router = gw.services.router
        router.add_worker(WorkerInfo(worker="d", models=[MODEL], role="decode", pool="p"))
        router.add_worker(WorkerInfo(worker="p0", models=[MODEL], role="prefill", pool="p"))
        router.add_worker(WorkerInfo(worker="q0", models=[MODEL], role="prefill", pool="q"))
        gw.services.fleet.knows = lambda _model: True  # type: ignore[method-assign]
        gw.services.fleet.only_relays = lambda _model: False  # type: ignore[method-assign]
        answer = await ask(gw, {"model": MODEL, "prompt": IDS})
    legs = answer["legs"]
    assert legs["decode"]["chosen"]["worker"] == "d"
    assert legs["prefill"]["chosen"]["worker"] == "p0"
    assert legs["prefill"]["left_out"]["q0"] == "its pool is 'q', not one of p"


async def test_mistakes_are_the_clients() -> None:
    async with gateway([]) as gw:
        assert "model" in (await ask(gw, {"prompt": IDS}, 400))["error"]["message"]
        assert (await ask(gw, {"model": "other", "prompt": IDS}, 404))["error"]["code"] == "model_not_found"
        assert (await ask(gw, [1], 400))["error"]["code"] == "invalid_json"
        assert (await ask(gw, {"model": MODEL}, 400))["error"]["param"] == "messages"


async def test_it_is_not_for_clients() -> None:
    async with gateway([]) as gw:
        response = await gw.post("/v1/route", {"model": MODEL, "prompt": IDS})
        assert response.status == 404
