"""What requests are in tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_server import error_of, say
from tests.gateway.raw_worker import status as http_status

CHAT: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


async def test_text_goes_to_tokens_and_back() -> None:
    async with gateway([], context_length=1000) as gw:
        asked = {"prompt": "Grüße, 世界", "return_token_strs": True}
        body = await (await gw.post("/tokenize", asked)).json()
        back = await (await gw.post("/detokenize", {"model": MODEL, "tokens": body["tokens"]})).json()
    assert back == {"prompt": "Grüße, 世界"}
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert body["max_model_len"] == 1000


async def test_a_chats_tokens_are_those_that_a_worker_gets_from_every_endpoint() -> None:
    async with gateway([say(65)]) as gw:
        await gw.post("/v1/chat/completions", CHAT)
        _, sent = gw.workers[0].requests[0]
        tokenized = await (await gw.post("/tokenize", CHAT)).json()
        rendered = await (await gw.post("/v1/chat/completions/render", CHAT)).json()
        counted = await (await gw.post("/v1/messages/count_tokens", CHAT)).json()
    assert tokenized["tokens"] == rendered["token_ids"] == sent["token_ids"]
    assert rendered["sampling_params"] == sent["sampling_params"]
    assert counted["input_tokens"] == len(sent["token_ids"]) - 3  # the stub that usage leaves out


async def test_a_prompt_of_any_length_is_counted() -> None:
    async with gateway([], context_length=100) as gw:
        body = await (await gw.post("/tokenize", {"prompt": "word " * 5000})).json()
        refused = await gw.post("/v1/completions", {"model": MODEL, "prompt": "word " * 5000})
        assert refused.status == 400
    assert body["count"] >= 5000


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "nope"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": 5}, 400, "messages"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, 400, "tokens[0]"),
        ("/v1/chat/completions/render", {"messages": []}, 400, "model"),
        ("/v1/chat/completions/render", CHAT | {"temperature": 3}, 400, "temperature"),
        ("/v1/chat/completions/render", CHAT | {"best_of": 3}, 400, "best_of"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    path: str, fields: dict[str, Any], status: int, param: str
) -> None:
    async with gateway([]) as gw:
        response = await gw.post(path, fields)
        assert (response.status, (await error_of(response))["param"]) == (status, param)


async def test_pass_through_workers_are_asked_themselves() -> None:
    async with gateway([http_status(200, b'{"count":1}')], endpoint="openai") as gw:
        body = await (await gw.post("/tokenize", {"model": MODEL, "prompt": "x"})).json()
        assert gw.workers[0].requests[0][0] == "/tokenize"
    assert body == {"count": 1}
