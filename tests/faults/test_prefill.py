"""What can happen to the prefill leg: another worker does it, or the client is told at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.conftest import LEASE_SECONDS, Bench, assert_right

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@STREAMED
async def test_unreachable(bench: Bench, stream: bool) -> None:
    text = bench.prompt()
    right = await bench.right(text, "pair", stream=stream)
    bench["p0"].kill()
    first, second = await asyncio.gather(
        bench.ask(text, gateway=bench.calm, stream=stream), bench.ask(text, gateway=bench.calm, stream=stream)
    )
    for answer in (first, second):
        assert_right(answer, right)


async def test_both_unreachable_is_a_clear_error(bench: Bench) -> None:
    bench["p0"].kill()
    bench["p1"].kill()
    answer = await bench.ask(bench.prompt(), gateway=bench.calm)
    assert (answer.status, answer.is_clear_error) == (502, True), answer
    assert answer.request_id


@pytest.mark.parametrize("status", [500, 503, 401])
async def test_refused_by_one(bench: Bench, status: int) -> None:
    text = bench.prompt()
    right = await bench.right(text, "pair")
    await bench["p0"].fault(refuse_count=4, refuse_status=status)
    answers = await asyncio.gather(*[bench.ask(text) for _ in range(4)])
    await bench["p0"].fault(refuse_count=0)
    for answer in answers:
        assert_right(answer, right)


async def test_refused_for_the_request_is_the_clients_answer(bench: Bench) -> None:
    for name in ("p0", "p1"):
        await bench[name].fault(refuse_count=1, refuse_status=400)
    answer = await bench.ask(bench.prompt())
    for name in ("p0", "p1"):
        await bench[name].fault(refuse_count=0)
    assert (answer.status, answer.is_clear_error) == (400, True), answer


async def test_slow(bench: Bench) -> None:
    text = bench.prompt()
    right = await bench.right(text, "pair")
    for name in ("p0", "p1"):
        await bench[name].fault(freeze_seconds=0.8)
    assert_right(await bench.ask(text, gateway=bench.calm), right)


async def test_frozen(bench: Bench) -> None:
    """SIGSTOP: its sockets stay open, its health checks time out, its legs are done elsewhere."""
    text = bench.prompt()
    right = await bench.right(text, "pair")
    bench["p0"].freeze()
    try:
        answers = await asyncio.gather(bench.ask(text), bench.ask(text))
    finally:
        bench["p0"].thaw()
    for answer in answers:
        assert_right(answer, right)


async def test_dies_before_it_answers(bench: Bench) -> None:
    text = bench.prompt() + "long " * 40_000
    right = await bench.right(text, "pair")
    asking = bench.ask(text)
    bench[await bench.used("p0", "p1")].kill()
    assert_right(await asking, right)


@STREAMED
async def test_dies_after_it_answered(bench: Bench, stream: bool) -> None:
    """Decode is about to read from it, over a link that is slow enough for the death to come first."""
    text = bench.prompt()
    right = await bench.right(text, "pair", stream=stream)
    for name in ("d0", "d1"):
        await bench[name].fault(slow_link=100_000)
    for name in ("p0",):
        await bench[name].fault(die="after_prefill")
    answers = await asyncio.gather(*[bench.ask(text, stream=stream) for _ in range(3)])
    for name in ("d0", "d1"):
        await bench[name].fault(slow_link=None)
    assert not bench["p0"].child.alive
    for answer in answers:
        assert_right(answer, right)


async def test_restarts_on_the_same_address_between_the_legs(bench: Bench) -> None:
    """Another engine answers for it: its handle is worth nothing there, and the pair begins anew."""
    text = bench.prompt()
    right = await bench.right(text, "pair")
    for name in ("d0", "d1"):
        bench[name].freeze()
    asking = bench.ask(text, gateway=bench.calm)
    await asyncio.sleep(0.5)
    used = [name for name in ("p0", "p1") if (await bench[name].state())["pinned_requests"]]
    assert len(used) == 1
    bench[used[0]].kill()
    bench[used[0]].start()
    await asyncio.sleep(1.0)
    for name in ("d0", "d1"):
        bench[name].thaw()
    assert_right(await asking, right)


async def test_parameters_of_another_request_are_not_used(bench: Bench) -> None:
    await asyncio.gather(*[bench.ask(bench.prompt()) for _ in range(4)])
    text = bench.prompt()
    right = await bench.right(text, "pair")
    await bench["p0"].fault(stale_parameters=1)
    answers = await asyncio.gather(bench.ask(text), bench.ask(text))
    await bench["p0"].fault(stale_parameters=0)
    for answer in answers:
        assert_right(answer, right)


async def test_the_lease_runs_out_while_the_gateway_is_frozen(bench: Bench) -> None:
    """The answer with the handle waited in the socket: it is older than it looks, and is not used."""
    text = bench.prompt() + "long " * 40_000
    right = await bench.right(text, "pair")
    dropped = await bench.quick.metric("handles_dropped_total")
    asking = bench.ask(text)
    used = bench[await bench.used("p0", "p1")]
    bench.quick.freeze()
    await asyncio.sleep(LEASE_SECONDS + 1.5)
    assert (await used.state())["pinned_requests"] == 0
    bench.quick.thaw()
    assert_right(await asking, right)
    assert await bench.quick.metric("handles_dropped_total") == dropped + 1
