"""What answers say of their tokens: log-probabilities, stops, the usage so far, the prompt again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_server import error_of, frames, say
from tests.gateway.raw_worker import stream, tokens

PLAIN = {"model": MODEL, "prompt": [1, 2]}


def likely(token_id: int, value: float = -0.5) -> dict[str, Any]:
    """An event of one token, in generate's shape."""
    top = [{"token_id": token_id, "logprob": value}, {"token_id": 300, "logprob": -4.0}]
    entry = {"token_id": token_id, "logprob": value, "top_logprobs": top}
    return {"choices": [{"index": 0, "token_ids": [token_id], "logprobs": {"content": [entry]}}]}


ANSWER = stream(likely(65), likely(66), tokens(finish="stop"))


async def test_a_chats_log_probabilities_are_asked_of_the_worker_and_given_in_openais_shape() -> None:
    async with gateway([ANSWER, ANSWER]) as gw:
        whole = await (await gw.chat(logprobs=True, top_logprobs=1)).json()
        streamed = await frames(await gw.chat(logprobs=True, top_logprobs=1, stream=True))
        sent = gw.workers[0].requests[0][1]
        text = gw.services.preparer.encodings.all[0].tokenizer.decode([65, 66])
    assert sent["sampling_params"]["logprobs"] == 1
    assert not {"logprobs", "top_logprobs"} & sent.keys()
    entries = whole["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == text
    assert [len(entry["top_logprobs"]) for entry in entries] == [1, 1]
    chunks = [chunk["choices"][0].get("logprobs") for chunk in streamed]
    assert [entry for one in chunks if one for entry in one["content"]] == entries
    assert chunks[0] is None


async def test_a_completions_log_probabilities_are_parallel_lists() -> None:
    async with gateway([ANSWER]) as gw:
        body = await (await gw.post("/v1/completions", PLAIN | {"logprobs": 0})).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5, -0.5]
    assert [list(top) for top in logprobs["top_logprobs"]] == [[name] for name in logprobs["tokens"]]


async def test_an_answer_without_them_has_null() -> None:
    async with gateway([say(65)]) as gw:
        body = await (await gw.chat()).json()
        assert "logprobs" not in gw.workers[0].requests[0][1]["sampling_params"]
    assert body["choices"][0]["logprobs"] is None


async def test_alternatives_need_log_probabilities() -> None:
    async with gateway([]) as gw:
        response = await gw.chat(top_logprobs=2)
        assert (response.status, (await error_of(response))["param"]) == (400, "top_logprobs")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_echoed_prompt_comes_before_the_answer(streamed: bool) -> None:
    async with gateway([say(65), say(65)]) as gw:
        decode = gw.services.preparer.encodings.all[0].tokenizer.decode
        for prompt, text in (("Hi", "Hi"), ([5, 6], decode([5, 6]))):
            asked = PLAIN | {"prompt": prompt, "echo": True, "stream": streamed}
            response = await gw.post("/v1/completions", asked)
            chunks = await frames(response) if streamed else [await response.json()]
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text + decode([65])


async def test_a_prompt_that_is_echoed_has_no_log_probabilities() -> None:
    async with gateway([]) as gw:
        response = await gw.post("/v1/completions", PLAIN | {"echo": True, "logprobs": 1})
        assert (response.status, (await error_of(response))["param"]) == (400, "logprobs")


async def test_continuous_usage_is_on_every_chunk_of_both_endpoints() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    async with gateway([say(65, 66), say(65, 66)]) as gw:
        chat = await frames(await gw.chat(**options))
        plain = await frames(await gw.post("/v1/completions", PLAIN | options))
    for chunks in (chat, plain):
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 2
        assert chunks[-1]["choices"] == []


async def test_a_stop_string_counts_the_tokens_up_to_it_alone() -> None:
    async with gateway([say(65, 66, 67, 68)]) as gw:
        decode = gw.services.preparer.encodings.all[0].tokenizer.decode
        body = await (await gw.post("/v1/completions", PLAIN | {"stop": decode([66])})).json()
    choice = body["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (decode([65]), decode([66]))
    assert body["usage"]["completion_tokens"] == 2


async def test_a_stop_tokens_text_is_not_shown() -> None:
    ends = stream(tokens(65, 66), {"choices": [{"finish_reason": "stop", "stop_reason": 66}]})
    async with gateway([ends, ends]) as gw:
        decode = gw.services.preparer.encodings.all[0].tokenizer.decode
        for shown, text in ((False, decode([65])), (True, decode([65, 66]))):
            asked = PLAIN | {"stop_token_ids": [66], "include_stop_str_in_output": shown}
            choice = (await (await gw.post("/v1/completions", asked)).json())["choices"][0]
            assert (choice["text"], choice["stop_reason"]) == (text, 66)
