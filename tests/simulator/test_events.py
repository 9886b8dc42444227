"""KV events over real ZeroMQ sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import zmq
import zmq.asyncio

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]
END = b"\xff" * 8


async def _generate(worker: RunningWorker, ids: list[int], max_tokens: int = 1) -> dict[str, Any]:
    body = {
        "token_ids": ids,
        "sampling_params": {"max_tokens": max_tokens, "extra_args": {"script_ids": [7] * 500}},
    }
    async with (
        aiohttp.ClientSession() as client,
        client.post(worker.url + "/inference/v1/generate", json=body) as response,
    ):
        assert response.status == 200
        answer: dict[str, Any] = await response.json()
        return answer


async def _sources(worker: RunningWorker) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as client,
        client.get(worker.url + "/kv_event_sources") as response,
    ):
        found: dict[str, Any] = (await response.json())["0"]
        return found


async def _replay(context: zmq.asyncio.Context, endpoint: str, first: int) -> list[list[bytes]]:
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    await socket.send_multipart([b"", first.to_bytes(8, "big")])
    messages: list[list[bytes]] = []
    while not messages or messages[-1][2] != END:
        messages.append(await socket.recv_multipart())
    socket.close(linger=0)
    return messages


async def test_published_batches_are_numbered_and_replayed(start: Start) -> None:
    worker = await start(block_size=4)
    sources = await _sources(worker)
    with zmq.asyncio.Context() as context:
        sub = context.socket(zmq.SUB)
        sub.setsockopt(zmq.SUBSCRIBE, b"kv-events")
        sub.connect(sources["endpoint"])
        while not await sub.poll(50):  # until the subscription is in
            await _generate(worker, [worker.publisher.sequence + 1] * 5)
        await _generate(worker, list(range(100, 110)), max_tokens=5)
        last = worker.publisher.sequence - 1
        live: list[list[bytes]] = []
        while not live or int.from_bytes(live[-1][1], "big") < last:
            live.append(await sub.recv_multipart())
        sub.close(linger=0)
        first = int.from_bytes(live[0][1], "big")
        replayed = await _replay(context, sources["replay_endpoint"], first)
    assert [int.from_bytes(message[1], "big") for message in live] == list(range(first, last + 1))
    assert replayed[:-1] == [[b"", *message] for message in live]
    assert replayed[-1] == [b"", b"", END, b""]
    stamp, events, rank = msgspec.msgpack.decode(live[-2][2])
    assert isinstance(stamp, float)
    assert rank == 0
    assert list(events[0]) == [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ]
    assert events[0]["token_ids"] == list(range(100, 108))
    _, (decoded,), _ = msgspec.msgpack.decode(live[-1][2])
    assert decoded["token_ids"] == [108, 109, 7, 7]
    assert decoded["parent_block_hash"] == events[0]["block_hashes"][-1]


async def test_replay_starts_at_the_oldest_batch_kept(start: Start) -> None:
    worker = await start(block_size=4, kv_buffer_steps=3)
    for value in range(6):
        await _generate(worker, [value] * 5)
    sources = await _sources(worker)
    with zmq.asyncio.Context() as context:
        everything = await _replay(context, sources["replay_endpoint"], 0)
        future = await _replay(context, sources["replay_endpoint"], 99)
    assert [int.from_bytes(message[2], "big") for message in everything[:-1]] == [3, 4, 5]
    assert len(future) == 1


async def test_a_long_prompt_is_one_batch_for_each_prefill_step(start: Start) -> None:
    worker = await start(block_size=4, max_num_batched_tokens=8)
    await _generate(worker, list(range(21)))
    assert worker.publisher.sequence == 3
    await _generate(worker, list(range(21)))
    assert worker.publisher.sequence == 3


async def test_reset_is_announced_with_the_next_batch(start: Start) -> None:
    worker = await start(block_size=4)
    await _generate(worker, [1] * 5)
    async with (
        aiohttp.ClientSession() as client,
        client.post(worker.url + "/reset_prefix_cache") as response,
    ):
        assert await response.json() == {"success": True}
    assert worker.publisher.sequence == 1
    answer = await _generate(worker, [1] * 5)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    sources = await _sources(worker)
    with zmq.asyncio.Context() as context:
        replayed = await _replay(context, sources["replay_endpoint"], 1)
    _, events, _ = msgspec.msgpack.decode(replayed[0][3])
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]
