"""What can happen to the decode leg: before its first output a new pair, after it the answer goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadtests.chaos.fleet import until
from tests.faults.conftest import Bench, assert_right

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {"words": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["words", "count"],
            },
        },
    }
]


async def test_unreachable(bench: Bench) -> None:
    """The handle reached nobody: another decode worker has the blocks freed, before the lease ends."""
    text = bench.prompt()
    right = await bench.right(text, "pair")
    reaped = await bench.calm.metric("reaped_total")
    failed = await bench.calm.metric("engine_failures_total", worker="d0")
    bench["d0"].kill()
    for answer in await asyncio.gather(*[bench.ask(text, gateway=bench.calm) for _ in range(3)]):
        assert_right(answer, right)
    if await bench.calm.metric("engine_failures_total", worker="d0") > failed:
        assert await bench.calm.metric("reaped_total") > reaped
    assert await bench.calm.metric("pinned_orphans") == 0


async def test_both_unreachable_is_a_clear_error(bench: Bench) -> None:
    bench["d0"].kill()
    bench["d1"].kill()
    answer = await bench.ask(bench.prompt(), gateway=bench.calm)
    assert (answer.status, answer.is_clear_error) == (502, True), answer


@pytest.mark.parametrize("status", [500, 503])
async def test_refused_by_one(bench: Bench, status: int) -> None:
    text = bench.prompt()
    right = await bench.right(text, "pair")
    await bench["d0"].fault(refuse_count=3, refuse_status=status)
    answers = await asyncio.gather(*[bench.ask(text) for _ in range(3)])
    await bench["d0"].fault(refuse_count=0)
    for answer in answers:
        assert_right(answer, right)


async def test_refused_for_the_request_is_the_clients_answer(bench: Bench) -> None:
    for name in ("d0", "d1"):
        await bench[name].fault(refuse_count=1, refuse_status=400)
    answer = await bench.ask(bench.prompt())
    for name in ("d0", "d1"):
        await bench[name].fault(refuse_count=0)
    assert (answer.status, answer.is_clear_error) == (400, True), answer


@STREAMED
async def test_dies_before_its_headers(bench: Bench, stream: bool) -> None:
    text = bench.prompt()
    right = await bench.right(text, "pair", stream=stream)
    for name in ("d0", "d1"):
        await bench[name].fault(slow_link=60_000)
    asking = bench.ask(text, stream=stream)
    victim = bench[await used_decode(bench)]
    victim.kill()
    for name in ("d0", "d1"):
        if bench[name] is not victim:
            await bench[name].fault(slow_link=None)
    assert_right(await asking, right)


async def used_decode(bench: Bench) -> str:
    """The decode worker that is fetching blocks."""
    found: list[str] = []

    async def check() -> bool:
        for name in ("d0", "d1"):
            state = await bench[name].state()
            if state.get("waiting") or state.get("running"):
                found.append(name)
        return bool(found)

    await until(check, "a decode worker has a request")
    return found[0]


@pytest.mark.parametrize("tokens", [1, 33, 150])
async def test_dies_in_mid_stream(bench: Bench, tokens: int) -> None:
    """Whatever part of the answer it is in: reasoning, markup, half a character, content."""
    continued = await bench.quick.metric("continuations_total")
    await bench.assert_right([(bench.prompt(), {})], "pair", dies_after=tokens)
    assert await bench.quick.metric("continuations_total") > continued


WISHES: tuple[dict[str, Any], ...] = (
    {"tools": TOOLS, "tool_choice": "auto"},
    {"stop": ["echo"]},
    {"stop": ["simulated worker"], "include_stop_str_in_output": True},
    {"max_tokens": 120, "min_tokens": 100},
    {"reasoning_effort": "none"},
    {"logprobs": True, "top_logprobs": 1},
)


@STREAMED
async def test_what_requests_asked_for_still_holds(bench: Bench, stream: bool) -> None:
    asked = [(bench.prompt("look_up"), {**wish, "stream": stream}) for wish in WISHES for _ in range(2)]
    await bench.assert_right(asked, "pair", dies_after=40 * len(WISHES))


async def test_frozen_in_mid_stream(bench: Bench) -> None:
    text = bench.prompt()
    right = await bench.right(text, "pair")
    begun = asyncio.Event()
    asking = bench.ask(text, begun=begun)
    await begun.wait()
    victim = bench[await bench.used("d0", "d1")]
    victim.freeze()
    try:
        assert_right(await asking, right)
    finally:
        victim.thaw()


async def test_killed_under_streams_of_any_age(bench: Bench) -> None:
    asked = [(bench.prompt(), {}) for _ in range(12)]
    await bench.assert_right(asked, "pair", dies_after=900, apart_seconds=0.1)


async def test_dies_and_nobody_is_left(bench: Bench) -> None:
    bench["d1"].kill()
    await until(lambda: bench.is_gone("d1"), "d1 is out")
    await bench["d0"].fault(die="after_tokens", tokens=40)
    answer = await bench.ask(bench.prompt())
    assert answer.is_clear_error, answer
    assert answer.error is not None
    assert "no other worker could take it" in answer.error["message"]
    assert answer.finish is None


async def test_the_transfer_hangs(bench: Bench) -> None:
    """The prefill worker is frozen with the blocks: decode gets nothing, and is not waited for for ever."""
    text = bench.prompt()
    right = await bench.right(text, "pair")
    await asyncio.gather(*[bench.ask(bench.prompt()) for _ in range(4)])  # the workers know each other
    for name in ("d0", "d1"):
        await bench[name].fault(slow_link=60_000)
    asking = bench.ask(text, gateway=bench.calm)
    used: list[str] = []

    async def pinned() -> bool:
        states = {name: await bench[name].state() for name in ("p0", "p1")}
        used[:] = [name for name, state in states.items() if state.get("pinned_requests")]
        return bool(used)

    await until(pinned, "a prefill worker has answered")
    bench[used[0]].freeze()
    try:
        for name in ("d0", "d1"):
            await bench[name].fault(slow_link=None)
        assert_right(await asking, right)
    finally:
        bench[used[0]].thaw()
