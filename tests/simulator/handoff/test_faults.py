"""Every fault, set over HTTP and seen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

Pair = Any  # conftest's, which cannot be imported
StartPair = Callable[..., Awaitable[Pair]]
Prompt = Callable[..., list[int]]


async def test_the_answer_says_what_is_in_force_and_null_ends_it(pair: StartPair) -> None:
    workers = await pair()
    worker = workers.prefill_worker
    assert (await workers.fault(worker, slow_link=1e6, event_loss=0.5))["slow_link"] == 1e6
    found = await workers.fault(worker, slow_link=None)
    assert (found["slow_link"], found["event_loss"]) == (None, 0.5)
    assert (await workers.state(worker))["faults"] == found


@pytest.mark.parametrize("body", [{"nonsense": 1}, {"die": "later"}, {"slow_link": "x"}])
async def test_what_is_no_fault_is_refused(pair: StartPair, body: dict[str, Any]) -> None:
    workers = await pair()
    status, answer = await workers.post(workers.prefill_worker, body, "/sim/fault")
    assert status == 400
    assert next(iter(body)) in answer["error"]["message"]


async def test_die_now(pair: StartPair) -> None:
    workers = await pair()
    await workers.fault(workers.prefill_worker, die="now")
    assert await workers.exited() == 137


async def test_die_after_a_prefill_leg(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    await workers.fault(workers.prefill_worker, die="after_prefill")
    await workers.alone(prompt(50))
    assert workers.exits == []
    assert (await workers.prefill(prompt(50)))["do_remote_prefill"] is True
    assert await workers.exited() == 137


async def test_die_after_tokens(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    await workers.fault(workers.decode_worker, die="after_tokens", tokens=10)
    await workers.decode(prompt(20), None, max_tokens=10)
    assert workers.exits == []
    await workers.decode(prompt(20), None, max_tokens=1)
    assert workers.exits == [137]


async def test_a_frozen_worker_takes_requests_and_answers_nothing(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    running = asyncio.create_task(
        workers.decode([1], None, vllm_xargs={"script_ids": [5] * 5, "delay_ms": 20})
    )
    await workers.until(workers.decode_worker, running=1)
    await workers.fault(workers.decode_worker, freeze_seconds=-1)
    new = asyncio.create_task(workers.decode(prompt(20), None))
    await asyncio.wait([running, new], timeout=0.3)
    assert not running.done()
    assert not new.done()
    await workers.fault(workers.decode_worker, freeze_seconds=None)
    assert [(await task)[0] for task in (running, new)] == [200, 200]


async def test_a_freeze_ends_by_itself(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    await workers.fault(workers.decode_worker, freeze_seconds=0.05)
    assert (await workers.decode(prompt(20), None))[0] == 200


async def test_a_slow_link_shows_in_the_times_of_transfers(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    nbytes = 7 * 16 * 128
    await workers.fault(workers.decode_worker, slow_link=nbytes / 0.2)
    assert await workers.both(prompt(100)) == await workers.alone(prompt(100))
    state = await workers.state(workers.decode_worker)
    assert state["transferred_bytes"] == nbytes
    assert state["transfer_seconds"] > 0.2


@pytest.mark.parametrize("side", ["prefill_worker", "decode_worker"])
async def test_without_heartbeats_a_slow_read_comes_too_late(
    pair: StartPair, prompt: Prompt, side: str
) -> None:
    workers = await pair(kv_lease_seconds=0.2)
    await workers.fault(workers.decode_worker, slow_link=7 * 16 * 128 / 0.8)
    await workers.fault(getattr(workers, side), drop_heartbeats=True)
    await workers.both(prompt(100))
    state = await workers.until(workers.prefill_worker, late_notifications=1)
    assert (state["expired_requests"], state["heartbeats"]) == (1, 0)


async def test_a_burst_of_503(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    await workers.fault(workers.decode_worker, refuse_count=2)
    statuses = [(await workers.decode(prompt(20), None))[0] for _ in range(3)]
    assert statuses == [503, 503, 200]
    await workers.fault(workers.decode_worker, refuse_seconds=3600)
    status, answer = await workers.decode(prompt(20), None)
    assert (status, answer["error"]["code"]) == (503, 503)
    await workers.fault(workers.decode_worker, refuse_seconds=None)
    assert (await workers.decode(prompt(20), None))[0] == 200


async def test_stale_parameters_are_a_former_legs(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    first = await workers.prefill(prompt(100, 1))
    await workers.fault(workers.prefill_worker, stale_parameters=1)
    stale = await workers.prefill(prompt(100, 2))
    assert stale == first
    status, answer = await workers.decode(prompt(100, 2), stale)
    assert status == 200
    assert answer["choices"][0]["text"] != await workers.alone(prompt(100, 2))
    assert await workers.violations() == 7
    assert await workers.prefill(prompt(100, 3)) != first


async def test_lost_events_are_a_gap_that_replay_fills(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    async with _Events(workers.prefill_worker) as events:
        await workers.alone(prompt(50, 1), max_tokens=1)
        await workers.fault(workers.prefill_worker, event_loss=1.0)
        await workers.alone(prompt(50, 2), max_tokens=1)
        await workers.fault(workers.prefill_worker, event_loss=0.0)
        await workers.alone(prompt(50, 3), max_tokens=1)
        assert [await events.next(), await events.next()] == [0, 2]
        assert await events.replayed() == [0, 1, 2]


async def test_late_events_come_in_order(pair: StartPair, prompt: Prompt) -> None:
    workers = await pair()
    async with _Events(workers.prefill_worker) as events:
        await workers.fault(workers.prefill_worker, event_lag=0.3)
        await workers.alone(prompt(50, 1), max_tokens=1)
        assert not await events.waiting()
        await workers.fault(workers.prefill_worker, event_lag=0.0)
        await workers.alone(prompt(50, 2), max_tokens=1)
        assert [await events.next(), await events.next()] == [0, 1]


class _Events:
    """A subscriber to a worker's KV events."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._context = zmq.asyncio.Context()

    async def __aenter__(self) -> _Events:
        self._sub = self._context.socket(zmq.SUB)
        self._sub.subscribe(b"")
        self._sub.connect(self._worker.publisher.endpoint)
        self._replay = self._context.socket(zmq.DEALER)
        self._replay.connect(self._worker.publisher.replay_endpoint)
        await asyncio.sleep(0.2)  # a subscription has no answer
        return self

    async def __aexit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    async def next(self) -> int:
        """The next batch's sequence."""
        async with asyncio.timeout(30):
            _, sequence, payload = await self._sub.recv_multipart()
        assert msgspec.msgpack.decode(payload)[1]
        return int.from_bytes(sequence, "big")

    async def waiting(self) -> bool:
        """Whether a batch is there."""
        return bool(await self._sub.poll(50))

    async def replayed(self) -> list[int]:
        """Sequences that replay gives."""
        await self._replay.send_multipart([b"", (0).to_bytes(8, "big")])
        found = []
        while (frames := await self._replay.recv_multipart())[2] != b"\xff" * 8:
            found.append(int.from_bytes(frames[2], "big"))
        return found
