"""What answers say of their tokens: log-probabilities, stops, the usage so far, the prompt again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_server import error_of, frames, say
from tests.gateway.raw_worker import Answer, status, stream, tokens

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


def whole(prompt: list[int], *ids: int) -> Answer:
    """An answer that comes at once, with its prompt's log-probabilities in generate's shape."""
    entries = [{"token_id": one, "logprob": -0.5, "rank": 1, "top_logprobs": []} for one in ids]
    found: list[Any] = [None]
    found += [
        {str(one): {"logprob": -1.5, "rank": 2}, "300": {"logprob": -0.1, "rank": 1}} for one in prompt[1:]
    ]
    choice = {"index": 0, "token_ids": list(ids), "finish_reason": "length", "logprobs": {"content": entries}}
    usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": 0}}
    return status(200, msgspec.json.encode({"prompt_logprobs": found, "choices": [choice], "usage": usage}))


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_echoed_prompt_has_log_probabilities_too(streamed: bool) -> None:
    async with gateway([whole([5, 6, 7], 65)]) as gw:
        asked = PLAIN | {
            "prompt": [5, 6, 7],
            "echo": True,
            "logprobs": 1,
            "max_tokens": 1,
            "stream": streamed,
        }
        response = await gw.post("/v1/completions", asked)
        chunks = await frames(response) if streamed else [await response.json()]
        sent = gw.workers[0].requests[0][1]
        decode = gw.services.preparer.encodings.all[0].tokenizer.decode
        assert gw.reservations == 0
    assert (sent["stream"], sent["sampling_params"]["prompt_logprobs"]) == (False, 1)
    choices = [chunk["choices"][0] for chunk in chunks]
    lists = {key: [v for c in choices for v in c["logprobs"][key]] for key in choices[0]["logprobs"]}
    assert lists["token_logprobs"] == [None, -1.5, -1.5, -0.5]
    assert lists["tokens"] == [decode([one]) for one in (5, 6, 7, 65)]
    assert lists["top_logprobs"][0] is None
    assert lists["top_logprobs"][1] == {decode([300]): -0.1, decode([6]): -1.5}
    text = "".join(choice["text"] for choice in choices)
    assert text == decode([5, 6, 7, 65])
    assert lists["text_offset"] == [len(decode([5, 6, 7, 65][:end])) for end in range(4)]


async def test_several_echoed_prompts_each_have_their_own() -> None:
    async with gateway([whole([5, 6], 65), whole([7, 8, 9], 66)]) as gw:
        asked = PLAIN | {"prompt": [[5, 6], [7, 8, 9]], "echo": True, "logprobs": 0, "max_tokens": 1}
        body = await (await gw.post("/v1/completions", asked)).json()
    assert [len(choice["logprobs"]["tokens"]) for choice in body["choices"]] in ([3, 4], [4, 3])


async def test_a_worker_that_leaves_them_out_is_a_workers_failure() -> None:
    broken = status(200, b'{"choices":[{"index":0,"token_ids":[65],"finish_reason":"stop"}]}')
    async with gateway([broken] * 3) as gw:
        response = await gw.post("/v1/completions", PLAIN | {"echo": True, "logprobs": 1})
        assert (response.status, (await error_of(response))["code"]) == (502, "engine_error")
        assert gw.reservations == 0


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
