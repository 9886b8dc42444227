"""More requests than workers run at once: they wait in the gateway, by priority, and never in an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loadtests.chaos.client import Client
from loadtests.chaos.fleet import Gateway, until
from tests.faults.conftest import GATEWAY, QUICK, Bench, assert_right


@pytest.fixture
async def narrow(bench: Bench) -> AsyncIterator[Gateway]:
    """A gateway whose workers run two sequences each, and that lets six requests wait."""
    options = GATEWAY | QUICK | {"queue_limit": 6, "queue_seconds": 8}
    gateway = bench.fleet.add_gateway("narrow", options, {"max_num_seqs": 2})
    gateway.start()
    await bench.fleet.whole()
    yield gateway
    for name in ("queued_requests", "router_reservations"):
        assert await gateway.metric(name) == 0
    gateway.kill()
    bench.fleet.gateways.remove(gateway)


@pytest.mark.parametrize("model", ["pair", "both"])
async def test_what_is_too_much_waits_or_is_refused(bench: Bench, narrow: Gateway, model: str) -> None:
    text = bench.prompt()
    right = await bench.right(text, model)
    most = 0

    async def watch() -> None:
        nonlocal most
        names = ("p0", "p1", "d0", "d1") if model == "pair" else ("a0", "a1")
        while True:
            for name in names:
                state = await bench[name].state()
                most = max(most, state["running"] + state["waiting"])
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    client = Client(narrow.url)
    answers = await asyncio.gather(*[client.chat(text, model=model) for _ in range(14)])
    watching.cancel()
    refused = [answer for answer in answers if answer.status == 429]
    for answer in answers:
        if answer.status == 429:
            assert answer.is_clear_error
            assert answer.error is not None
            assert answer.error["code"] == "queue_full"
        else:
            assert_right(answer, right)
    assert len(refused) == 14 - 4 - 6
    assert most <= 2


async def test_a_worker_that_dies_while_others_wait_for_it(bench: Bench, narrow: Gateway) -> None:
    text = bench.prompt()
    right = await bench.right(text, "pair")
    client = Client(narrow.url)
    asking = [asyncio.create_task(client.chat(text, model="pair")) for _ in range(8)]

    async def waiting() -> bool:
        return await narrow.metric("queued_requests") > 0

    await until(waiting, "some wait")
    bench["d0"].kill()
    for answer in await asyncio.gather(*asking):
        assert_right(answer, right)


async def test_whoever_leaves_the_line_is_out_at_once(bench: Bench, narrow: Gateway) -> None:
    client = Client(narrow.url)
    asking = [asyncio.create_task(client.chat(bench.prompt(), model="both")) for _ in range(8)]

    async def waiting(count: int) -> bool:
        return await narrow.metric("queued_requests") == count

    await until(lambda: waiting(4), "four wait")
    for task in asking:
        task.cancel()
    await until(lambda: waiting(0), "nobody waits", 2)
