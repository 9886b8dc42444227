"""Clients that leave, wherever their request is: nothing of it stays, and no KV cache stays pinned."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from loadtests.chaos.client import Answer
from loadtests.chaos.fleet import until
from tests.faults.conftest import Bench
from tests.faults.test_decode import used_decode


async def leave(asking: asyncio.Task[Answer]) -> None:
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def test_during_prefill(bench: Bench) -> None:
    asking = bench.ask(bench.prompt() + "long " * 40_000)
    used = bench[await bench.used("p0", "p1")]
    await leave(asking)

    async def stopped() -> bool:
        return not (await used.state())["running"]

    await until(stopped, "the prefill worker has stopped", 3)


async def test_between_the_legs(bench: Bench) -> None:
    """The decode worker fetches the KV cache all the same, so that it is free before the lease ends."""
    for name in ("d0", "d1"):
        await bench[name].fault(slow_link=100_000)
    reaped = await bench.quick.metric("reaped_total")
    asking = bench.ask(bench.prompt())
    await used_decode(bench)
    await leave(asking)

    async def fetched() -> bool:
        return await bench.quick.metric("reaped_total") > reaped

    await until(fetched, "the KV cache is fetched")
    for name in ("d0", "d1"):
        await bench[name].fault(slow_link=None)
    for name in ("p0", "p1"):
        state = await bench[name].state()
        assert (state["pinned_requests"], state["expired_requests"]) == (0, bench.expired.get(name, 0))
    assert await bench.quick.metric("pinned_orphans") == 0


@pytest.mark.parametrize("model", ["pair", "both"])
async def test_in_mid_stream(bench: Bench, model: str) -> None:
    begun = asyncio.Event()
    asking = bench.ask(bench.prompt(), model, begun=begun)
    await begun.wait()
    names = ("d0", "d1") if model == "pair" else ("a0", "a1")
    used = bench[await bench.used(*names)]
    await leave(asking)

    async def stopped() -> bool:
        return not (await used.state())["running"]

    await until(stopped, "the worker has stopped", 1)


async def test_while_its_answer_is_continued(bench: Bench) -> None:
    begun = asyncio.Event()
    asking = bench.ask(bench.prompt(), begun=begun)
    await begun.wait()
    victim = await bench.used("d0", "d1")
    other = "d1" if victim == "d0" else "d0"
    await bench[other].fault(slow_link=60_000)
    bench[victim].kill()
    await asyncio.sleep(0.3)
    await leave(asking)
    await bench[other].fault(slow_link=None)


@pytest.mark.parametrize("model", ["pair", "both"])
async def test_many_at_any_moment(bench: Bench, model: str) -> None:
    """A client a few milliseconds later than the one before, over the whole of a request."""
    asking = []
    for number in range(24):
        asking.append(bench.ask(bench.prompt(), model))
        asyncio.get_running_loop().call_later(0.02 * number, asking[-1].cancel)
    await asyncio.gather(*asking, return_exceptions=True)
