"""The SGLang adapter against recorded answers of a real one, and against bytes that are decided here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.engines.base import EngineError, EngineRequest, EngineUsage, TokenLogprob
from gateway.engines.sglang import SglangCall, SglangEngine, generate_body, new_rid
from parsers.base import Constraint
from tests.gateway.raw_worker import Answer, broken_stream, endless_stream, running, silence, status, stream

DATA = Path(__file__).parent / "data"
Writer = asyncio.StreamWriter


class Sink:
    """Remembers what it was told, by choice."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, tuple[str, int | str | None]] = {}
        self.usage: EngineUsage | None = None
        self.logprobs: list[TokenLogprob] = []
        self.flushed = 0
        """Tokens that were there when a read was over."""

    def on_logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> None:
        self.logprobs += logprobs

    def on_tokens(self, index: int, token_ids: Sequence[int]) -> None:
        self.tokens.setdefault(index, []).extend(token_ids)

    def on_text(self, index: int, text: str) -> None:
        raise AssertionError("the adapter reads ids")

    def on_finish(self, index: int, reason: str, stop_reason: int | str | None) -> None:
        assert index not in self.finished
        self.finished[index] = (reason, stop_reason)

    def on_usage(self, usage: EngineUsage) -> None:
        self.usage = usage

    def flush(self) -> None:
        self.flushed = sum(map(len, self.tokens.values()))


def request(**changes: Any) -> EngineRequest:
    fields: dict[str, Any] = {
        "request_id": "0" * 24,
        "model": "m",
        "token_ids_json": b"1,2,3",
        "prompt_tokens": 3,
        "sampling": {"max_tokens": b"6", "temperature": b"0.10", "seed": b"7", "top_k": b"-1"},
        "top_level": {"cache_salt": b'"s"', "unknown": b"1"},
    }
    return EngineRequest(**(fields | changes))


def recorded(name: str, cut: int | None = None) -> Answer:
    """A real worker's answer, in pieces of `cut` bytes."""
    data = (DATA / f"sglang_{name}.resp").read_bytes()

    async def answer(writer: Writer, body: bytes) -> None:
        for start in range(0, len(data), cut or len(data)):
            writer.write(data[start : start + (cut or len(data))])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    return answer


def said(
    ids: list[int], total: int, *, reason: Any = None, index: int = 0, cached: int = 0
) -> dict[str, Any]:
    meta = {"id": "x", "finish_reason": reason, "prompt_tokens": 3, "completion_tokens": total}
    return {"text": "", "output_ids": ids, "index": index, "meta_info": {**meta, "cached_tokens": cached}}


LENGTH = {"type": "length", "length": 2}


async def generate(answer: Answer, sink: Sink, **changes: Any) -> SglangCall:
    async with running(answer, status(200)) as worker:
        call = await SglangEngine(worker.url).start(request(**changes), lambda: sink)
        await asyncio.wait_for(call.done, 5)
        return call


@pytest.mark.parametrize("cut", [None, 1, 37, 1000])
async def test_cumulative_output_is_given_once(cut: int | None) -> None:
    sink = Sink()
    await generate(recorded("gen_ids_stream", cut), sink)
    assert sink.tokens == {0: [629, 1936, 629, 1936, 629, 1936]}
    assert sink.finished == {0: ("length", None)}
    assert sink.usage == EngineUsage(70, 6, 64)


async def test_incremental_output_is_given_as_it_is() -> None:
    sink = Sink()
    await generate(recorded("inc_gen_stream"), sink)
    assert sink.tokens == {0: [981, 689, 981, 689, 981]}
    assert sink.usage == EngineUsage(100, 5, 0)


async def test_log_probabilities_come_with_their_tokens() -> None:
    sink = Sink()
    await generate(recorded("gen_ids_logprob_stream"), sink, logprobs=0)
    assert [each.token_id for each in sink.logprobs] == sink.tokens[0]
    assert sink.logprobs[0] == TokenLogprob(1162, -7.624611854553223, [])
    assert body(logprobs=2)["top_logprobs_num"] == 2


async def test_what_a_read_brought_goes_out_with_it() -> None:
    sink = Sink()
    async with running(endless_stream(said([1, 2], 2)), status(200)) as worker:
        call = await SglangEngine(worker.url).start(request(), lambda: sink)
        async with asyncio.timeout(5):
            while sink.flushed < 2:  # noqa: ASYNC110 - a sink has no event for it
                await asyncio.sleep(0.01)
        call.abort()


async def test_choices_are_kept_apart_and_counted_together() -> None:
    sink = Sink()
    await generate(recorded("gen_batch_stream"), sink)
    assert sorted(sink.tokens) == sorted(sink.finished) == [0, 1]
    assert sink.usage is not None
    assert sink.usage.completion_tokens == sum(map(len, sink.tokens.values()))


async def test_the_token_that_ended_the_answer_is_told() -> None:
    sink = Sink()
    await generate(stream(said([5, 9], 2, reason={"type": "stop", "matched": 9})), sink)
    assert sink.finished == {0: ("stop", 9)}


@pytest.mark.parametrize(
    ("answer", "code"),
    [(recorded("gen_err_toolong"), 400), (recorded("gen_err_unknown_sp"), 400)],
    ids=["too long", "unknown parameter"],
)
async def test_a_refusal_has_the_workers_words(answer: Answer, code: int) -> None:
    with pytest.raises(EngineError, match=r"longer than|unknown field") as caught:
        await generate(answer, Sink())
    assert caught.value.status == code
    assert not caught.value.retryable


async def test_a_refusal_inside_a_stream_is_one_as_well() -> None:
    with pytest.raises(EngineError, match="longer than the model") as caught:
        await generate(recorded("gen_err_toolong_stream"), Sink())
    assert (caught.value.status, caught.value.retryable) == (400, False)


async def test_a_refusal_that_comes_as_an_abort_is_one_as_well() -> None:
    refused = {"type": "abort", "message": "no grammar", "status_code": 400}
    with pytest.raises(EngineError, match="no grammar") as caught:
        await generate(stream(said([], 0, reason=refused)), Sink())
    assert (caught.value.status, caught.value.retryable) == (400, False)


@pytest.mark.parametrize(
    "answer",
    [
        stream(said([], 0, reason={"type": "abort", "message": "Abort in waiting queue"})),
        stream(said([1], 1)),
        broken_stream(said([1], 1)),
        stream({"output_ids": [1]}),
    ],
    ids=["aborted", "not finished", "broken", "without meta_info"],
)
async def test_an_answer_that_is_not_whole_is_a_failure_that_another_worker_may_take(answer: Answer) -> None:
    with pytest.raises(EngineError) as caught:
        await generate(answer, Sink())
    assert caught.value.retryable


async def test_tokens_that_were_lost_on_the_way_are_noticed() -> None:
    with pytest.raises(EngineError, match="skips tokens: 2 of 3"):
        await generate(stream(said([1], 1), said([3], 3, reason=LENGTH)), Sink())


async def test_an_abort_names_the_request_and_lets_the_connection_go() -> None:
    async with running(endless_stream(said([1], 1)), status(200)) as worker:
        call = await SglangEngine(worker.url).start(request(), Sink)
        worker.asked.clear()
        call.abort()
        await asyncio.wait_for(worker.asked.wait(), 5)
        await asyncio.wait_for(worker.left.wait(), 5)
        (_, sent), (path, abort) = worker.requests
    assert (path, abort) == ("/abort_request", {"rid": sent["rid"]})


async def test_a_request_that_waits_there_is_aborted_when_its_client_leaves() -> None:
    async with running(silence, status(200)) as worker:
        start = asyncio.create_task(SglangEngine(worker.url).start(request(), Sink))
        await asyncio.wait_for(worker.asked.wait(), 5)
        worker.asked.clear()
        start.cancel()
        await asyncio.wait_for(worker.asked.wait(), 5)
    assert worker.requests[1][1] == {"rid": worker.requests[0][1]["rid"]}


async def test_an_answer_that_is_over_is_not_aborted() -> None:
    async with running(stream(said([1, 2], 2, reason=LENGTH))) as worker:
        call = await SglangEngine(worker.url).start(request(), Sink)
        await call.done
        call.abort()
        await asyncio.sleep(0.05)
        assert len(worker.requests) == 1


async def test_the_prefill_leg_gives_its_cached_tokens_and_drops_its_token() -> None:
    async with running(stream(said([4], 1, reason={"type": "length", "length": 0}, cached=64))) as worker:
        answer = await SglangEngine(worker.url).prefill(request())
    assert answer.cached_tokens == 64


async def test_a_cancelled_prefill_leg_is_aborted() -> None:
    async with running(endless_stream(), status(200)) as worker:
        leg = asyncio.create_task(SglangEngine(worker.url).prefill(request()))
        await asyncio.wait_for(worker.asked.wait(), 5)
        await asyncio.sleep(0.05)
        worker.asked.clear()
        leg.cancel()
        await asyncio.wait_for(worker.asked.wait(), 5)
        assert worker.requests[1][0] == "/abort_request"


def test_request_ids_have_one_length_and_are_never_the_same() -> None:
    ids = {new_rid(f"{number:024x}") for number in range(100)} | {new_rid("0" * 24) for _ in range(100)}
    assert len(ids) == 200
    assert {len(rid) for rid in ids} == {33}
    assert all(re.fullmatch("[0-9a-f]{24}-[0-9a-f]{8}", rid) for rid in ids)


def body(**changes: Any) -> dict[str, Any]:
    sent: dict[str, Any] = msgspec.json.decode(b"".join(generate_body(request(**changes), "rid")))
    return sent


def test_the_body_is_streamed_ids_with_sglangs_names_and_nothing_that_could_steer() -> None:
    assert body(dp_rank=3) == {
        "rid": "rid",
        "stream": True,
        "cache_salt": "s",
        "sampling_params": {"max_new_tokens": 6, "temperature": 0.1, "sampling_seed": 7, "top_k": -1},
        "routed_dp_rank": 3,
        "input_ids": [1, 2, 3],
    }
    assert b'"temperature":0.10' in b"".join(generate_body(request(), "rid"))


@pytest.mark.parametrize(("low_first", "sent"), [(False, 5), (True, -5)])
def test_a_low_priority_value_comes_first_whatever_the_worker_thinks(low_first: bool, sent: int) -> None:
    asked = request(top_level={"priority": b"-5"})
    encoded = b"".join(generate_body(asked, "r", low_priority_first=low_first))
    assert msgspec.json.decode(encoded)["priority"] == sent


def test_a_constraint_is_said_in_sglangs_words() -> None:
    sampling = body(constraint=Constraint("regex", "a+"))["sampling_params"]
    assert sampling["regex"] == "a+"


def test_what_sglang_has_no_word_for_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match="allowed_token_ids") as caught:
        body(sampling={"allowed_token_ids": b"[1]"})
    assert (caught.value.status, caught.value.param) == (400, "allowed_token_ids")
