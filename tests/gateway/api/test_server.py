"""The HTTP surface against workers whose every byte is decided here."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from gateway.engines.connection import HttpConnection
from parsers.registry import DEFAULT_FORMAT, get_format
from tests.gateway.api.conftest import MODEL, Gateway, gateway
from tests.gateway.raw_worker import broken_stream, endless_stream, hang_up, status, stream, tokens

HI = [72, 105]
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
PLAIN = {"model": MODEL, "prompt": "ab"}


def say(*ids: int, finish: str = "stop") -> Any:
    """An answer of these token ids; the packaged vocabulary's first 256 ids are not bytes in order."""
    return stream(tokens(*ids), tokens(finish=finish), USAGE)


async def frames(response: Any) -> list[Any]:
    data = (await response.read()).decode()
    parts = data.split("\n\n")
    assert parts.pop() == ""
    assert parts.pop() == "data: [DONE]"
    return [msgspec.json.decode(part.removeprefix("data: ")) for part in parts]


async def error_of(response: Any) -> dict[str, Any]:
    body = await response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


async def test_a_completion_of_ids_reaches_the_worker_as_these_ids_and_comes_back_as_text() -> None:
    async with gateway([say(5, 6)]) as gw:
        response = await gw.post("/v1/completions", PLAIN | {"prompt": [1, 2, 3]})
        body = await response.json()
        path, sent = gw.workers[0].requests[0]
        assert gw.reservations == 0
    assert response.status == 200
    assert path == "/inference/v1/generate"
    assert sent["token_ids"] == [1, 2, 3]
    assert sent["sampling_params"]["max_tokens"] == 16
    assert body["object"] == "text_completion"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_the_workers_id_of_a_request_is_not_the_clients() -> None:
    async with gateway([say(5)]) as gw:
        await gw.post("/v1/completions", PLAIN | {"request_id": "mine"}, headers={"X-Request-Id": "mine"})
        assert gw.workers[0].requests[0][1]["request_id"] != "mine"


async def test_a_streamed_chat_ends_with_its_finish_its_usage_and_done() -> None:
    async with gateway([say(5, 6, finish="length")]) as gw:
        response = await gw.chat(stream=True, stream_options={"include_usage": True})
        chunks = await frames(response)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_the_clients_max_completion_tokens_wins_over_max_tokens() -> None:
    async with gateway([say(5)]) as gw:
        await gw.chat(max_tokens=3, max_completion_tokens=7)
        assert gw.workers[0].requests[0][1]["sampling_params"]["max_tokens"] == 7


async def test_an_answer_may_fill_the_context_and_no_more() -> None:
    async with gateway([say(5), say(5)], context_length=1000) as gw:
        for fields in ({}, {"max_tokens": 5000}):
            await gw.post(
                "/v1/completions", {"model": MODEL, "prompt": [1] * 400, "max_tokens": 600} | fields
            )
        asked = [body["sampling_params"]["max_tokens"] for _, body in gw.workers[0].requests]
    assert asked == [600, 600]


async def test_stop_strings_are_matched_by_the_gateway_which_stops_the_worker() -> None:
    async with gateway([endless_stream(tokens(65, 66, 67))]) as gw:
        tokenizer = gw.services.preparer.encodings.all[0].tokenizer
        text = tokenizer.decode([65, 66, 67])
        response = await gw.post("/v1/completions", PLAIN | {"stop": [text[1:]], "max_tokens": 50})
        body = await response.json()
        assert "stop" not in gw.workers[0].requests[0][1]["sampling_params"]
        await asyncio.wait_for(gw.workers[0].left.wait(), 5)
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (text[:1], "stop")


async def test_steering_fields_do_not_reach_a_worker() -> None:
    async with gateway([say(5)]) as gw:
        await gw.chat(kv_transfer_params={"do_remote_prefill": True}, extra_args={"x": 1}, knob=[1])
        sent = gw.workers[0].requests[0][1]
    assert "kv_transfer_params" not in sent
    assert "extra_args" not in sent["sampling_params"]
    assert sent["knob"] == [1]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b'{"messages":[]}', "missing_required_parameter", "model"),
        (b'{"model":"test/model"}', "missing_required_parameter", "messages"),
        (b'{"model":"test/model","messages":[]}', None, "messages"),
        (b'{"model":"test/model","messages":[{"content":"x"}]}', None, "messages[0].role"),
        (b'{"model":"test/model","messages":[{"role":"x","content":"x"}]}', None, "messages[0].role"),
        (b'{"model":"test/model","messages":[{"role":"user","content":"x"}],"n":0}', "invalid_value", "n"),
        (
            b'{"model":"test/model","messages":[{"role":"user","content":"x"}],"stream_options":{}}',
            None,
            "stream_options",
        ),
    ],
)
async def test_a_wrong_chat_is_a_400_that_names_the_field(
    body: bytes, code: str | None, param: str | None
) -> None:
    async with gateway([]) as gw:
        headers = {"Content-Type": "application/json"}
        response = await gw.post("/v1/chat/completions", data=body, headers=headers)
        error = await error_of(response)
        assert gw.reservations == 0
    assert response.status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if code is not None:
        assert error["code"] == code


async def test_an_unknown_model_is_a_404_that_names_it() -> None:
    async with gateway([]) as gw:
        response = await gw.chat(model="other")
        error = await error_of(response)
    assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "other" in error["message"]


async def test_a_prompt_over_the_context_is_a_400_with_both_numbers() -> None:
    async with gateway([], context_length=100) as gw:
        response = await gw.post("/v1/completions", PLAIN | {"prompt": [1] * 100})
        error = await error_of(response)
    assert (response.status, error["code"]) == (400, "context_length_exceeded")
    assert "100" in error["message"]


async def test_an_id_outside_the_vocabulary_is_a_400() -> None:
    async with gateway([]) as gw:
        response = await gw.post("/v1/completions", PLAIN | {"prompt": [5, 10**7]})
        assert (response.status, (await error_of(response))["param"]) == (400, "prompt")


@pytest.mark.parametrize("field", [{"stop_token_ids": [10**7]}, {"logit_bias": {"10000000": 1}}])
async def test_an_id_outside_the_vocabulary_reaches_no_worker(field: dict[str, Any]) -> None:
    async with gateway([]) as gw:
        response = await gw.chat(**field)
        assert (response.status, (await error_of(response))["param"]) == (400, *field)
        assert gw.workers[0].requests == []


async def test_a_completion_keeps_to_a_response_format() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    async with gateway([say(5)]) as gw:
        await gw.post("/v1/completions", PLAIN | {"response_format": wanted})
        sent = gw.workers[0].requests[0][1]
    assert sent["sampling_params"]["structured_outputs"] == {"json": {"type": "object"}}


async def test_without_any_worker_a_request_is_a_503_with_retry_after() -> None:
    async with gateway() as gw:
        response = await gw.chat()
        error = await error_of(response)
        assert (await gw.get("/live")).status == 200
        assert (await gw.get("/ready")).status == 503
    assert (response.status, error["code"]) == (503, "no_worker")
    assert int(response.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (status(400, b'{"error":{"message":"bad knob","param":"knob"}}'), (400, "bad knob", "knob")),
        (status(422, b'{"detail":"odd"}'), (422, "odd", None)),
        (status(500, b"Traceback in /srv/engine.py"), (502, None, None)),
        (status(503), (503, None, None)),
        (status(429), (429, None, None)),
        (status(401, b'{"error":"Unauthorized"}'), (502, None, None)),
        (hang_up, (502, None, None)),
        (broken_stream(), (502, None, None)),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_workers_failure_before_the_first_event_is_a_status(
    answer: Any, expected: tuple[int, str | None, str | None], streamed: bool
) -> None:
    async with gateway([answer]) as gw:
        response = await gw.chat(stream=streamed)
        error = await error_of(response)
        assert gw.reservations == 0
    code, message, param = expected
    assert (response.status, error["param"]) == (code, param)
    assert message is None or error["message"] == message
    assert "/srv" not in error["message"]
    assert "127.0.0.1" not in error["message"]


async def test_a_workers_death_after_the_first_event_is_an_error_frame_then_done() -> None:
    async with gateway([broken_stream(tokens(5))]) as gw:
        response = await gw.chat(stream=True)
        chunks = await frames(response)
        assert gw.reservations == 0
    assert response.status == 200
    assert chunks[-1]["error"]["type"] == "server_error"


async def test_another_worker_takes_over_when_the_first_fails_before_its_first_event() -> None:
    async with gateway([hang_up, hang_up], [say(5), say(5)]) as gw:
        answers = [await gw.chat(), await gw.chat()]
        assert [answer.status for answer in answers] == [200, 200]
        assert gw.reservations == 0


async def test_workers_that_refuse_are_not_asked_more_than_three_times_for_one_request() -> None:
    answers = [[status(500)] * 9 for _ in range(4)]
    async with gateway(*answers) as gw:
        response = await gw.chat()
        assert (response.status, response.headers["x-should-retry"]) == (502, "false")
        assert sum(len(worker.requests) for worker in gw.workers) == 3


async def test_a_request_that_the_client_tries_again_is_not_tried_elsewhere_when_refused() -> None:
    async with gateway([status(503)], [status(503)]) as gw:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        response = await gw.post("/v1/chat/completions", body, headers={"x-stainless-retry-count": "1"})
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert "x-should-retry" not in response.headers
        assert sum(len(worker.requests) for worker in gw.workers) == 1


async def test_a_request_that_the_client_tries_again_still_leaves_a_worker_that_is_gone() -> None:
    async with gateway([hang_up, hang_up], [say(5)]) as gw:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        response = await gw.post("/v1/chat/completions", body, headers={"x-stainless-retry-count": "2"})
        assert response.status == 200


async def test_a_sole_workers_failure_is_left_to_the_clients_retries() -> None:
    async with gateway([status(500)]) as gw:
        assert "x-should-retry" not in (await gw.chat()).headers


async def test_every_answer_has_a_request_id() -> None:
    async with gateway([say(5), say(5), say(5), status(500)]) as gw:
        answers = [
            await gw.chat(),
            await gw.chat(stream=True),
            await gw.chat(temperature=9),
            await gw.get("/v1/models"),
            await gw.get("/nothing"),
            await gw.get("/v1/chat/completions"),
            await gw.get("/live"),
            await gw.post("/v1/completions", PLAIN),
            await gw.chat(),
        ]
        ids = [answer.headers["X-Request-Id"] for answer in answers]
        whole = await answers[0].json()
    assert len(set(ids)) == len(ids)
    assert whole["id"] == f"chatcmpl-{ids[0]}"
    assert all(len(each) == 24 for each in ids)


@pytest.mark.parametrize(("theirs", "kept"), [("mine-1", True), ("x" * 129, False), ("a b", False)])
async def test_a_clients_own_request_id_comes_back(theirs: str, kept: bool) -> None:
    async with gateway([say(5)]) as gw:
        answers = [
            await gw.post("/v1/completions", body, headers={"X-Request-Id": theirs})
            for body in (PLAIN, {"model": MODEL})
        ]
        assert [answer.status for answer in answers] == [200, 400]
        assert all((answer.headers["X-Request-Id"] == theirs) is kept for answer in answers)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_stops_the_worker(streamed: bool) -> None:
    async with gateway([endless_stream(tokens(5))]) as gw:
        if streamed:
            response = await gw.chat(stream=True)
            await response.content.readany()
            response.close()
        else:
            task = asyncio.create_task(gw.chat())
            await gw.workers[0].asked.wait()
            task.cancel()
        await asyncio.wait_for(gw.workers[0].left.wait(), 5)
        await _settled(gw)
        assert gw.services.metrics.client_disconnects == 1


async def _settled(gw: Gateway) -> None:
    while gw.reservations or gw.services.metrics.in_flight:  # noqa: ASYNC110 - nothing in the product tells
        await asyncio.sleep(0.01)


async def test_headers_and_first_event_arrive_in_one_packet() -> None:
    async with gateway([endless_stream(tokens(5))]) as gw:
        host, _, port = gw.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = msgspec.json.encode(
            {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        )
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        first = await reader.read(65536)
        writer.close()
    assert first.startswith(b"HTTP/1.1 200")
    assert b"reasoning_content" in first


async def test_a_slow_reader_pauses_the_worker_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[bool] = []
    pause, resume = HttpConnection.pause, HttpConnection.resume
    monkeypatch.setattr(HttpConnection, "pause", lambda self: (pauses.append(True), pause(self)))
    monkeypatch.setattr(HttpConnection, "resume", lambda self: (pauses.append(False), resume(self)))
    reads, size, token = 400, 5000, _longest_token()
    answer = stream(*[tokens(*[token] * size) for _ in range(reads)], tokens(finish="stop"))
    async with gateway([answer]) as gw:
        unit = gw.services.preparer.encodings.all[0].tokenizer.decode([token])
        client = await _small_window(gw)
        body = msgspec.json.encode(PLAIN | {"stream": True, "max_tokens": reads * size})
        head = b"POST /v1/completions HTTP/1.0\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, head + body)
        while True not in pauses:  # noqa: ASYNC110 - nothing in the product tells
            await asyncio.sleep(0.01)
        received = b""
        while data := await loop.sock_recv(client, 1 << 20):
            received += data
        client.close()
    events = received.split(b"\r\n\r\n", 1)[1].split(b"\n\n")
    texts = [msgspec.json.decode(event[6:])["choices"][0]["text"] for event in events[:-2]]
    assert "".join(texts) == unit * reads * size
    assert False in pauses


def _longest_token() -> int:
    """So that the answer outgrows every buffer of the kernel with few ids."""
    pieces = get_format(DEFAULT_FORMAT).load_vocabulary().token_bytes()[:5000]
    return max((len(piece), i) for i, piece in enumerate(pieces) if piece.isascii())[1]


async def _small_window(gw: Gateway) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.setblocking(False)
    host, _, port = gw.url.removeprefix("http://").partition(":")
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    return client


async def test_wrong_urls_and_methods_get_the_same_error_shape() -> None:
    async with gateway([]) as gw:
        missing = await gw.get("/v1/nothing")
        wrong = await gw.get("/v1/chat/completions")
        assert (missing.status, (await error_of(missing))["code"]) == (404, "unknown_url")
        assert (wrong.status, (await error_of(wrong))["code"]) == (405, "method_not_allowed")
        assert wrong.headers["Allow"] == "POST"


async def test_a_body_that_cannot_be_decompressed_is_a_400() -> None:
    async with gateway([]) as gw:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        response = await gw.post("/v1/chat/completions", data=b"{}", headers=headers)
        assert (response.status, (await error_of(response))["code"]) == (400, "invalid_body")


async def test_the_end_of_a_stream_is_the_end_of_an_http_1_0_connection() -> None:
    async with gateway([say(5)]) as gw:
        host, _, port = gw.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = msgspec.json.encode(PLAIN | {"stream": True})
        head = b"POST /v1/completions HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        everything = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert everything.endswith(b"data: [DONE]\n\n")


async def test_a_stop_string_leaves_the_cached_tokens_that_the_worker_told_so_far() -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}}
    async with gateway([endless_stream({"choices": [], "usage": usage}, tokens(65, 66, 67))]) as gw:
        text = gw.services.preparer.encodings.all[0].tokenizer.decode([65, 66, 67])
        response = await gw.post("/v1/completions", PLAIN | {"stop": [text[1:]], "max_tokens": 50})
        assert (await response.json())["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


async def test_a_body_over_the_limit_is_a_413() -> None:
    async with gateway([], max_body_bytes=1000) as gw:
        response = await gw.chat(user="x" * 2000)
        assert (response.status, (await error_of(response))["code"]) == (413, "request_too_large")


async def test_models_are_listed_and_looked_up() -> None:
    async with gateway([], context_length=2048) as gw:
        listed = await (await gw.get("/v1/models")).json()
        one = await (await gw.get(f"/v1/models/{MODEL}")).json()
        missing = await gw.get("/v1/models/none")
        assert listed["data"] == [one]
        assert (one["id"], one["max_model_len"]) == (MODEL, 2048)
        assert (missing.status, (await error_of(missing))["code"]) == (404, "model_not_found")


async def test_a_draining_gateway_is_live_not_ready_and_refuses_new_requests() -> None:
    async with gateway([]) as gw:
        gw.services.draining = True
        refused = await gw.chat()
        states = [(await gw.get(path)).status for path in ("/live", "/ready", "/health")]
        assert (refused.status, (await error_of(refused))["code"]) == (503, "shutting_down")
    assert states == [200, 503, 503]


async def test_metrics_count_what_happened() -> None:
    async with gateway([say(5, 6)]) as gw:
        await gw.chat()
        text = await (await gw.get("/metrics")).text()
    assert 'kvgateway_requests_total{endpoint="/v1/chat/completions",status="200"} 1.0' in text
    assert "kvgateway_output_tokens_total 2.0" in text
    assert "kvgateway_time_to_first_token_seconds_count 1.0" in text


async def test_a_worker_that_takes_no_ids_gets_the_request_as_it_is_and_answers_itself() -> None:
    body = b'{"id":"theirs","choices":[]}'
    event = {"id": "theirs", "choices": [{"delta": {"content": "x"}}]}
    async with gateway([status(200, body), stream(event), broken_stream(event)], endpoint="openai") as gw:
        whole = await gw.chat(temperature=0.5, kv_transfer_params={})
        streamed = await gw.chat(stream=True)
        chunks = await frames(streamed)
        broken = await frames(await gw.chat(stream=True))
        path, sent = gw.workers[0].requests[0]
        assert await whole.read() == body
        assert gw.reservations == 0
    assert path == "/v1/chat/completions"
    assert sent["messages"] == [{"role": "user", "content": "Hi"}]
    assert "kv_transfer_params" not in sent
    assert chunks == [event]
    assert broken[0] == event
    assert "error" in broken[1]
