"""Data-parallel ranks: which one a request gets, and what each publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from loadtests.processes import free_ports
from simulator.ranks import Ranks
from simulator.settings import SimulatorSettings

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]


async def _generate(worker: RunningWorker, ids: list[int], rank: str | None, **script: Any) -> Any:
    body = {"token_ids": ids, "sampling_params": {"extra_args": {"script_ids": [7], **script}}}
    headers = {} if rank is None else {"X-data-parallel-rank": rank}
    async with (
        aiohttp.ClientSession() as client,
        client.post(worker.url + "/inference/v1/generate", json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def _get(worker: RunningWorker, path: str) -> bytes:
    async with aiohttp.ClientSession() as client, client.get(worker.url + path) as response:
        return await response.read()


async def test_each_rank_has_its_own_pool(start: Start) -> None:
    worker = await start(dp_size=2)
    prompt = list(range(100))
    cached = []
    for rank in ("0", "1", "0"):
        _, answer = await _generate(worker, prompt, rank)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 96]
    assert [rank.publisher.sequence for rank in worker.ranks] == [1, 1]


@pytest.mark.parametrize("rank", ["2", "-1"])
async def test_a_rank_that_is_not_there(start: Start, rank: str) -> None:
    status, answer = await _generate(await start(dp_size=2), [1], rank)
    assert status == 400
    assert answer["error"]["message"] == f"data_parallel_rank {rank} is out of range [0, 2)."


async def test_no_number_is_no_choice(start: Start) -> None:
    assert (await _generate(await start(dp_size=2), [1], "one"))[0] == 200


async def test_the_least_loaded_rank_is_chosen(start: Start) -> None:
    worker = await start(dp_size=3)
    slow = [asyncio.create_task(_generate(worker, [1], None, delay_ms=300)) for _ in range(3)]
    for _ in range(2000):
        loads = [rank.load for rank in worker.ranks]
        if sum(loads) == 3:
            break
        await asyncio.sleep(0.005)
    await asyncio.gather(*slow)
    assert loads == [1, 1, 1]


async def test_sources_and_batches_name_the_rank(start: Start) -> None:
    worker = await start(dp_size=2)
    sources = msgspec.json.decode(await _get(worker, "/kv_event_sources"))
    assert list(sources) == ["0", "1"]
    await _generate(worker, [1] * 40, "1")
    with zmq.asyncio.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.connect(sources["1"]["replay_endpoint"])
        await socket.send_multipart([b"", (0).to_bytes(8, "big")])
        *_, payload = await socket.recv_multipart()
        socket.close(linger=0)
    assert msgspec.msgpack.decode(payload)[2] == 1


async def test_ports_are_the_first_ranks_plus_the_number() -> None:
    for _ in range(20):
        base, replay = free_ports(2)
        ranks = Ranks(SimulatorSettings(dp_size=2, kv_events_port=base, kv_replay_port=replay))
        with suppress(zmq.ZMQError):  # a neighbour may be taken
            ranks.start()
            endpoints = [(rank.publisher.endpoint, rank.publisher.replay_endpoint) for rank in ranks]
            wanted = [tuple(f"tcp://127.0.0.1:{port + n}" for port in (base, replay)) for n in range(2)]
            assert endpoints == wanted
            break
        await ranks.close()
    await ranks.close()


async def test_metrics_and_resets_are_for_all_ranks(start: Start) -> None:
    worker = await start(dp_size=2)
    for rank in ("0", "1", "1"):
        await _generate(worker, [1] * 40, rank)
    page = (await _get(worker, "/metrics")).decode()
    counts = [f'vllm:prompt_tokens_total{{engine="{rank}",model_name="moonshotai/Kimi-K3"}}' for rank in "01"]
    assert f"{counts[0]} 40.0" in page
    assert f"{counts[1]} 80.0" in page
    async with (
        aiohttp.ClientSession() as client,
        client.post(worker.url + "/reset_prefix_cache") as response,
    ):
        assert await response.json() == {"success": True}
    _, answer = await _generate(worker, [1] * 40, "1")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
