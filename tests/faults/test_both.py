"""Workers that prefill and decode: the same faults, the same answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.faults.conftest import Bench, assert_right

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@STREAMED
async def test_unreachable(bench: Bench, stream: bool) -> None:
    text = bench.prompt()
    right = await bench.right(text, "both", stream=stream)
    bench["a0"].kill()
    answers = await asyncio.gather(
        *[bench.ask(text, "both", gateway=bench.calm, stream=stream) for _ in range(2)]
    )
    for answer in answers:
        assert_right(answer, right)


@pytest.mark.parametrize("status", [500, 503, 401])
async def test_refused_by_one(bench: Bench, status: int) -> None:
    text = bench.prompt()
    right = await bench.right(text, "both")
    await bench["a0"].fault(refuse_count=2, refuse_status=status)
    answers = await asyncio.gather(*[bench.ask(text, "both") for _ in range(2)])
    await bench["a0"].fault(refuse_count=0)
    for answer in answers:
        assert_right(answer, right)


async def test_frozen_before_it_answers(bench: Bench) -> None:
    text = bench.prompt()
    right = await bench.right(text, "both")
    bench["a0"].freeze()
    try:
        answers = await asyncio.gather(*[bench.ask(text, "both") for _ in range(2)])
    finally:
        bench["a0"].thaw()
    for answer in answers:
        assert_right(answer, right)


@pytest.mark.parametrize("tokens", [3, 90])
@STREAMED
async def test_dies_in_mid_answer(bench: Bench, tokens: int, stream: bool) -> None:
    await bench.assert_right([(bench.prompt(), {"stream": stream})], "both", dies_after=tokens)


FOR_ONE: dict[str, dict[str, Any]] = {
    "more than one choice": {"n": 2},
    "presence_penalty": {"presence_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "constraint": {"response_format": {"type": "json_object"}},
}


async def test_what_cannot_go_on_says_so(bench: Bench) -> None:
    """Of two of a kind one is on the worker that dies."""
    asking = {why: [bench.ask(bench.prompt(), "both", **FOR_ONE[why]) for _ in range(2)] for why in FOR_ONE}
    victim = await bench.doom("both", 10 * len(FOR_ONE))
    broken = 0
    for why, tasks in asking.items():
        for answer in await asyncio.gather(*tasks):
            if answer.error is not None:
                broken += 1
                assert answer.is_clear_error, answer
                assert why in answer.error["message"]
    assert not bench[victim].child.alive
    assert broken


async def test_a_whole_answer_that_cannot_go_on_begins_anew(bench: Bench) -> None:
    asked = (bench.prompt(), {"presence_penalty": 0.5, "stream": False})
    await bench.assert_right([asked], "both", dies_after=20)
