"""The vLLM adapter against a worker whose every byte is decided here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from gateway.engines import connection, exchange
from gateway.engines.base import EngineError, EngineRequest, EngineUsage
from gateway.engines.vllm import (
    STREAMED,
    WHOLE,
    Endpoint,
    VllmCall,
    VllmEngine,
    completions_body,
    generate_body,
)
from tests.gateway.raw_worker import (
    SSE_HEAD,
    broken_stream,
    chunk,
    endless_stream,
    event,
    hang_up,
    running,
    silence,
    status,
    stream,
    tokens,
)


class Sink:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.finished: list[tuple[int, str, int | str | None]] = []
        self.usage: EngineUsage | None = None
        self.flushes = 0

    def on_tokens(self, index: int, token_ids: Sequence[int]) -> None:
        self.tokens += token_ids

    def on_text(self, index: int, text: str) -> None:
        self.text += text

    def on_finish(self, index: int, reason: str, stop_reason: int | str | None) -> None:
        self.finished.append((index, reason, stop_reason))

    def on_usage(self, usage: EngineUsage) -> None:
        self.usage = usage

    def flush(self) -> None:
        self.flushes += 1


def request(**changes: object) -> EngineRequest:
    fields: dict[str, object] = {
        "request_id": "r1",
        "model": "m",
        "token_ids_json": b"1,2,3",
        "prompt_tokens": 3,
        "sampling": {"temperature": b"0.10", "vllm_xargs": b'{"a":1}'},
        "top_level": {"cache_salt": b'"s"'},
    }
    return EngineRequest(**(fields | changes))  # type: ignore[arg-type]


async def generate(
    url: str, sink: Sink, endpoint: Endpoint = "generate", engine: VllmEngine | None = None
) -> VllmCall:
    call = await (engine or VllmEngine(url, endpoint)).start(request(), lambda: sink)
    await call.done
    return call


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}


async def test_tokens_finish_and_usage_reach_the_sink() -> None:
    sink = Sink()
    async with running(stream(tokens(5, 6), tokens(7, finish="stop"), USAGE)) as worker:
        await generate(worker.url, sink)
    assert sink.tokens == [5, 6, 7]
    assert sink.finished == [(0, "stop", None)]
    assert sink.usage is not None
    assert sink.usage.cached_tokens == 2


async def test_text_is_taken_only_from_a_worker_that_sends_no_ids() -> None:
    sink = Sink()
    with_ids = {"choices": [{"text": "x", "token_ids": [9]}]}
    without = {"choices": [{"text": "y", "finish_reason": "stop"}]}
    async with running(stream(with_ids, without)) as worker:
        await generate(worker.url, sink)
    assert (sink.tokens, sink.text) == ([9], "y")


async def test_a_connection_is_used_again() -> None:
    async with running(stream(tokens(1, finish="stop")), stream(tokens(2, finish="stop"))) as worker:
        engine = VllmEngine(worker.url, "generate")
        await generate(worker.url, Sink(), engine=engine)
        await generate(worker.url, Sink(), engine=engine)
        assert worker.connections == 1


async def test_a_reused_connection_that_dies_without_a_byte_is_retried_once_on_a_fresh_one() -> None:
    answers = (stream(tokens(1, finish="stop")), hang_up, stream(tokens(2, finish="stop")))
    async with running(*answers) as worker:
        engine, sink = VllmEngine(worker.url, "generate"), Sink()
        await generate(worker.url, Sink(), engine=engine)
        await generate(worker.url, sink, engine=engine)
        assert sink.tokens == [2]
        assert worker.connections == 2


async def test_a_fresh_connection_that_dies_without_a_byte_is_not_retried_there() -> None:
    async with running(hang_up, stream(tokens(1, finish="stop"))) as worker:
        with pytest.raises(EngineError) as caught:
            await generate(worker.url, Sink())
        assert caught.value.retryable
        assert len(worker.requests) == 1


async def test_an_unreachable_worker_is_a_retryable_error() -> None:
    async with running() as worker:
        url = worker.url
    with pytest.raises(EngineError, match="cannot reach") as caught:
        await generate(url, Sink())
    assert caught.value.retryable
    assert caught.value.status is None


ERROR = b'{"error":{"message":"too long","type":"BadRequestError","param":"input_tokens","code":400}}'


@pytest.mark.parametrize(
    ("code", "body", "message", "retryable"),
    [
        (400, ERROR, "too long", False),
        (404, b'{"detail":"Not Found"}', "Not Found", False),
        (401, b'{"error":"Unauthorized"}', "Unauthorized", True),
        (500, b"boom", "boom", True),
        (503, b"", "the worker answered 503", True),
        (429, b"{}", "the worker answered 429", True),
    ],
)
async def test_a_refusal_carries_the_workers_status_and_words(
    code: int, body: bytes, message: str, retryable: bool
) -> None:
    async with running(status(code, body)) as worker:
        with pytest.raises(EngineError) as caught:
            await generate(worker.url, Sink())
    error = caught.value
    assert (error.status, str(error), error.retryable) == (code, message, retryable)


async def test_the_refused_field_is_named() -> None:
    async with running(status(400, ERROR)) as worker:
        with pytest.raises(EngineError) as caught:
            await generate(worker.url, Sink())
    assert caught.value.param == "input_tokens"


async def test_a_stream_that_loses_its_connection_fails() -> None:
    async with running(broken_stream(tokens(1))) as worker:
        sink = Sink()
        with pytest.raises(EngineError, match="went away"):
            await generate(worker.url, sink)
    assert sink.tokens == [1]


async def test_a_stream_that_ends_cleanly_without_being_finished_fails() -> None:
    async with running(_ends_early) as worker:
        with pytest.raises(EngineError, match="before it was finished"):
            await generate(worker.url, Sink())


async def _ends_early(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(SSE_HEAD + chunk(event(tokens(1))) + b"0\r\n\r\n")
    await writer.drain()


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b'{"choices":[{"token_ids":"x"}]}',
        b"\xff",
        b'{"choices":[{"index":-1,"token_ids":[1]}]}',
        b'{"choices":[{"token_ids":[1,-1]}]}',
        b'{"choices":[{"token_ids":[1,4294967296]}]}',
    ],
)
async def test_an_unreadable_event_fails_the_request_and_nothing_else(payload: bytes) -> None:
    async with running(stream(payload), stream(tokens(4, finish="stop"))) as worker:
        engine, sink = VllmEngine(worker.url, "generate"), Sink()
        with pytest.raises(EngineError, match="cannot be read"):
            await generate(worker.url, Sink(), engine=engine)
        await generate(worker.url, sink, engine=engine)
        assert sink.tokens == [4]


async def test_an_error_frame_fails_the_request_with_its_message() -> None:
    frame = {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}
    async with running(stream(frame)) as worker:
        with pytest.raises(EngineError, match="engine died") as caught:
            await generate(worker.url, Sink())
    assert caught.value.status == 500


async def test_an_answer_that_is_not_http_is_an_error() -> None:
    async def garbage(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        await writer.drain()

    async with running(garbage) as worker:
        with pytest.raises(EngineError):
            await generate(worker.url, Sink())


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_finish_reason_that_is_a_failure_fails_the_request(reason: str) -> None:
    async with running(stream(tokens(1, finish=reason))) as worker:
        with pytest.raises(EngineError, match=reason) as caught:
            await generate(worker.url, Sink())
    assert caught.value.retryable


async def test_a_stream_that_says_done_before_it_is_finished_fails() -> None:
    async with running(stream(tokens(1))) as worker:
        with pytest.raises(EngineError, match="before it was finished"):
            await generate(worker.url, Sink())


async def test_a_frozen_worker_that_is_taken_out_lets_its_requests_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.1)
    async with running(endless_stream(tokens(1))) as streaming, running(silence) as silent:
        engine, other = VllmEngine(streaming.url, "generate"), VllmEngine(silent.url, "generate")
        call = await engine.start(request(), Sink)
        unanswered = asyncio.create_task(other.start(request(), Sink))
        await silent.asked.wait()
        engine.close()
        other.close()
        with pytest.raises(EngineError, match="went away"):
            await asyncio.wait_for(call.done, 5)
        with pytest.raises(EngineError):
            await asyncio.wait_for(unanswered, 5)


async def test_a_worker_that_is_taken_out_may_finish_what_it_goes_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 1.0)

    async def slowly(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(SSE_HEAD)
        for token in range(15):
            writer.write(chunk(event(tokens(token))))
            await asyncio.sleep(0.1)
        writer.write(chunk(event(tokens(finish="stop")) + event(b"[DONE]")) + b"0\r\n\r\n")

    async with running(slowly) as worker:
        engine, sink = VllmEngine(worker.url, "generate"), Sink()
        call = await engine.start(request(), lambda: sink)
        engine.close()
        await asyncio.wait_for(call.done, 20)
    assert sink.tokens == list(range(15))


async def test_usage_is_asked_for_on_every_chunk_of_a_stream_that_may_be_ended_early() -> None:
    async with running(stream(tokens(finish="stop"))) as worker:
        call = await VllmEngine(worker.url, "generate").start(request(usage_on_every_chunk=True), Sink)
        await call.done
        assert worker.requests[0][1]["stream_options"]["continuous_usage_stats"] is True


async def test_an_aborted_call_closes_its_connection_and_resolves() -> None:
    async with running(endless_stream(tokens(1))) as worker:
        call = await VllmEngine(worker.url, "generate").start(request(), Sink)
        call.abort()
        await call.done
        await asyncio.wait_for(worker.left.wait(), 5)


async def test_cancelling_the_start_closes_the_connection() -> None:
    async with running(silence) as worker:
        task = asyncio.create_task(VllmEngine(worker.url, "generate").start(request(), Sink))
        await worker.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(worker.left.wait(), 5)


async def test_a_whole_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_ANSWER_BYTES", 1000)
    async with running(stream(*[tokens(1)] * 100)) as worker:
        with pytest.raises(EngineError, match="larger than 1000 bytes"):
            await VllmEngine(worker.url, "generate").prefill(request())


def test_the_generate_body_keeps_numbers_as_they_were_spelled() -> None:
    body = b"".join(generate_body(request(), STREAMED))
    assert b'"temperature":0.10' in body
    assert msgspec.json.decode(body) == {
        "model": "m",
        "request_id": "r1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "sampling_params": {"temperature": 0.1, "extra_args": {"a": 1}},
        "cache_salt": "s",
        "token_ids": [1, 2, 3],
    }


def test_a_kv_handle_is_in_the_generate_body_where_old_and_new_workers_read_it() -> None:
    handle = b'{"do_remote_prefill":true,"x":1.50}'
    body = b"".join(generate_body(request(top_level={"kv_transfer_params": handle}), STREAMED))
    assert body.count(handle) == 2
    read = msgspec.json.decode(body)
    assert read["kv_transfer_params"] == {"do_remote_prefill": True, "x": 1.5}
    assert read["sampling_params"]["extra_args"] == {"a": 1, "kv_transfer_params": read["kv_transfer_params"]}


def test_the_completions_body_asks_for_ids_and_control_tokens() -> None:
    body = msgspec.json.decode(b"".join(completions_body(request(), WHOLE)))
    assert body["prompt"] == [1, 2, 3]
    assert body["return_token_ids"] is True
    assert body["skip_special_tokens"] is False
    assert body["vllm_xargs"] == {"a": 1}


async def test_a_data_parallel_rank_goes_out_as_a_header() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(EngineError):
            await VllmEngine(url, "generate").start(request(dp_rank=3), Sink)
    assert b"X-data-parallel-rank: 3\r\n" in seen[0]
