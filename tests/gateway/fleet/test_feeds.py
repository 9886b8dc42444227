"""A simulated worker's events reach the router, and what they say of its blocks is shown."""

from __future__ import annotations

import asyncio

import aiohttp

from gateway.config import WorkerSettings
from gateway.fleet.feeds import KvFeeds
from gateway.fleet.probe import probe
from gateway.fleet.worker import Worker
from router.messages import WorkerInfo
from router.selector import Router
from tests.gateway.doctor.conftest import Start, start, tokens

__all__ = ["start", "tokens"]


async def test_block_sizes_are_known_by_group(start: Start) -> None:
    simulated = await start(kv_groups="mla+mamba", block_size=16)
    worker = Worker(WorkerSettings(url=simulated.url, name="w"))
    router = Router()
    router.add_worker(WorkerInfo(worker="w", models=("m",)))
    feeds = KvFeeds(router)
    async with aiohttp.ClientSession() as session:
        worker.profile = await probe(session, worker.settings)
        assert worker.profile.block_size == 16
        await feeds.start(worker)
        body = {
            "model": "moonshotai/Kimi-K3",
            "token_ids": [*range(40)],
            "sampling_params": {"max_tokens": 1},
        }
        async with session.post(f"{simulated.url}/inference/v1/generate", json=body) as answer:
            assert answer.status == 200
        async with asyncio.timeout(5):
            while len(feeds.describe("w")[0]["block_sizes"]) < 2:  # noqa: ASYNC110 - a feed has no event for it
                await asyncio.sleep(0.02)
    assert feeds.describe("w")[0]["block_sizes"] == {0: 16, 1: 16}
    assert router.snapshot_stats().targets[0].indexed_blocks > 0
    await feeds.stop(worker)
    assert feeds.describe("w") == []
