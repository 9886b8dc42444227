"""Answers that broke off and are gone on with: what the next worker is asked, and what the client reads."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import msgspec
import numpy as np
import pytest

from gateway.serving.continuation import continued, how_it_ended, obstacle
from gateway.serving.flight import BrokenOffError
from gateway.serving.generation import Choice, Generation, Observer
from gateway.serving.job import Job
from gateway.tokens.prompts import EncodedPrompt
from parsers.base import Constraint
from tests.gateway.raw_worker import broken_stream, endless_stream, status, stream, tokens
from tests.gateway.serving.test_dispatch import Bench, Numbers, Text, contexts

REST = stream(tokens(3), tokens(4, finish="stop"))
BROKEN = broken_stream(tokens(1), tokens(2))


def job(**fields: Any) -> Job:
    made = Bench([]).job()
    return msgspec.structs.replace(made, **fields)


async def ask(bench: Bench, **fields: Any) -> str:
    """A stream to its end; what it said."""
    flight = await bench.flights.open(msgspec.structs.replace(bench.job(), **fields), bench.generation)
    try:
        await flight.wait()
    finally:
        flight.close()
        assert (bench.reservations, bench.double_releases) == (0, 0)
    return bench.texts[-1].text


async def test_a_stream_goes_on_elsewhere_without_a_seam() -> None:
    async with contexts([BROKEN], [REST]) as bench:
        text = await ask(bench, sampling={"max_tokens": b"10", "min_tokens": b"3"})
        sent = bench.workers[1].requests[0][1]
        assert bench.metrics.continuations == 1
    assert text == "1 2 3 4 "
    assert len(bench.texts) == 1
    assert sent["token_ids"] == [1, 2, 3, 1, 2]
    assert (sent["sampling_params"]["max_tokens"], sent["sampling_params"]["min_tokens"]) == (8, 1)


async def test_usage_is_counted_once_over_all_workers() -> None:
    async with contexts([BROKEN], [REST]) as bench:
        flight = await bench.open()
        await flight.wait()
        flight.close()
        assert flight.generation.completion_tokens == 4
        assert flight.cached_tokens is None


async def test_a_whole_answer_goes_on_as_well() -> None:
    async with contexts([BROKEN], [REST]) as bench:
        flight = await bench.run()
        flight.close()
        assert bench.texts[-1].text == "1 2 3 4 "


async def test_a_whole_answer_that_cannot_go_on_begins_anew() -> None:
    async with contexts([BROKEN], [stream(tokens(5, finish="stop"))]) as bench:
        asked = msgspec.structs.replace(bench.job(), constraint=Constraint("json_object", True))
        flight = await bench.flights.run(asked, bench.generation)
        flight.close()
        assert bench.texts[-1].text == "5 "


async def test_the_number_of_continuations_is_limited() -> None:
    async with contexts([BROKEN], [BROKEN], [REST]) as bench:
        with pytest.raises(BrokenOffError, match="went away") as caught:
            await ask(bench)
        assert caught.value.why == "that has happened too often"
        assert bench.texts[-1].text == "1 2 1 2 "


async def test_without_another_worker_it_is_said() -> None:
    async with contexts([BROKEN]) as bench:
        with pytest.raises(BrokenOffError) as caught:
            await ask(bench)
        assert caught.value.why == "no other worker could take it"


async def test_the_next_worker_may_fail_before_its_first_token() -> None:
    async with contexts([BROKEN], [status(500)], [REST]) as bench:
        assert await ask(bench) == "1 2 3 4 "


async def test_a_worker_that_refuses_the_rest_ends_the_stream() -> None:
    async with contexts([BROKEN], [status(400, b'{"error":{"message":"no"}}')]) as bench:
        with pytest.raises(BrokenOffError, match="no"):
            await ask(bench)


async def test_an_answer_whose_worker_died_after_its_finish_is_complete() -> None:
    async with contexts([broken_stream(tokens(1), tokens(2, finish="stop"))], [REST]) as bench:
        assert await ask(bench) == "1 2 "
        assert bench.workers[1].requests == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": 2}, "length"),
        ({"sampling": {"stop_token_ids": b"[9,2]"}}, "stop"),
    ],
    ids=["all tokens", "a stop token"],
)
async def test_an_answer_that_was_over_is_ended(fields: dict[str, Any], reason: str) -> None:
    async with contexts([BROKEN], [REST]) as bench:
        assert await ask(bench, **fields) == "1 2 "
        assert bench.texts[-1].reason == reason
        assert bench.workers[1].requests == []


async def test_a_client_that_leaves_while_another_worker_takes_over_leaves_nothing() -> None:
    async with contexts([BROKEN], [endless_stream()]) as bench:
        flight = await bench.open()
        waiting = asyncio.create_task(flight.wait())
        await bench.workers[1].asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        flight.close()
        assert (bench.reservations, bench.double_releases) == (0, 0)
        await asyncio.wait_for(bench.workers[1].left.wait(), 5)


async def test_a_slow_clients_pause_holds_for_the_next_worker() -> None:
    many = [tokens(i) for i in range(1, 6)]
    async with contexts([BROKEN], [stream(*many, tokens(finish="stop"))]) as bench:
        flight = await bench.open()
        flight.pause()
        flight.resume()
        await flight.wait()
        flight.close()
        assert bench.texts[-1].text.startswith("1 2 1 2 3")


def generation(choices: int = 1) -> Generation:
    class Nobody(Observer):
        pool = ""

        def on_progress(self, new_tokens: int) -> None: ...

        def on_output(self) -> None: ...

        def on_stopped(self) -> None: ...

    return Generation([Choice(Numbers(), None) for _ in range(choices)], Text(), Nobody())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"choices": 2}, "choice"),
        ({"constraint": Constraint("json_object", True)}, "constraint"),
        ({"sampling": {"presence_penalty": b"0.5"}}, "presence_penalty"),
        ({"sampling": {"frequency_penalty": b"-1"}}, "frequency_penalty"),
        ({"sampling": {"repetition_penalty": b"1.1"}}, "repetition_penalty"),
        ({"sampling": {"vllm_xargs": b"{}"}}, "vllm_xargs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_carried_over_is_not_continued(fields: dict[str, Any], why: str) -> None:
    assert why in (obstacle(job(**fields), generation()) or "")


async def test_penalties_that_do_nothing_are_no_obstacle() -> None:
    neutral = {"presence_penalty": b"0.0", "frequency_penalty": b"0", "repetition_penalty": b"1.0"}
    assert obstacle(job(sampling=neutral), generation()) is None


async def test_a_worker_that_sends_text_is_not_continued() -> None:
    spoken = generation()
    spoken.on_text(0, "Hi")
    assert "no token ids" in (obstacle(job(), spoken) or "")


async def test_an_id_that_the_vocabulary_does_not_have_is_given_to_no_other_worker() -> None:
    said = generation()
    said.on_tokens(0, [9, 10])
    assert obstacle(job(vocabulary=11), said) is None
    assert "does not exist" in (obstacle(job(vocabulary=10), said) or "")
    assert "does not exist" in (obstacle(job(vocabulary=11, others=[job(vocabulary=10)]), said) or "")


async def test_several_choices_keep_no_ids() -> None:
    assert generation(2).said is None


async def test_the_rest_is_asked_for_in_the_encoding_that_began_it() -> None:
    other = job(prompt=EncodedPrompt(np.array([7], np.uint32), b"7"), pools=frozenset({"old"}))
    first = job(pools=frozenset({"new"}), others=[other])
    rest = continued(first, "old", array("I", [8, 9]))
    assert (rest.prompt.ids_json, rest.prompt.ids.tolist(), rest.pools) == (b"7,8,9", [7, 8, 9], {"old"})
    assert rest.others == ()


async def test_min_tokens_keep_a_stop_token_from_ending_it() -> None:
    sampling = {"stop_token_ids": b"[2]", "min_tokens": b"5"}
    assert how_it_ended(job(sampling=sampling), array("I", [1, 2])) is None
