"""Text to ids and back, and chats as requests to the engine."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from parsers.base import Chat
from parsers.registry import get_format
from simulator.tokens import Tokens

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]
ASKED = [{"role": "user", "content": "hi ☂"}]


async def _post(worker: RunningWorker, path: str, body: Any) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.post(worker.url + path, json=body) as response:
        return response.status, json.loads(await response.text())


def _ids(tokens: Tokens, **options: Any) -> list[int]:
    return tokens.encode_segments(get_format("kimi_k3").encode(Chat(messages=ASKED, **options)).segments)


async def test_text_there_and_back(start: Start) -> None:
    worker = await start(max_model_len=1000)
    _, answer = await _post(worker, "/tokenize", {"prompt": "a ☂"})
    assert answer == {"count": 5, "max_model_len": 1000, "tokens": list("a ☂".encode()), "token_strs": None}
    assert await _post(worker, "/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": "a ☂"})


async def test_tokens_are_spelled_in_printable_characters(start: Start, tokens: Tokens) -> None:
    _, answer = await _post(await start(), "/tokenize", {"prompt": "a \né", "return_token_strs": True})
    assert answer["token_strs"] == ["a", "Ġ", "Ċ", "Ã", "©"]


async def test_a_chat_has_control_tokens(start: Start, tokens: Tokens) -> None:
    _, answer = await _post(await start(), "/tokenize", {"messages": ASKED, "return_token_strs": True})
    assert answer["tokens"] == _ids(tokens)
    assert answer["token_strs"][0] == "<|open|>"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {"prompt": "x", "model": "other"}, 404),
        ("/tokenize", {}, 400),
        ("/detokenize", {}, 400),
        ("/detokenize", {"tokens": [163_840]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/v1/chat/completions/render", {"messages": []}, 400),
        ("/v1/chat/completions/render", {"messages": ASKED, "model": "other"}, 404),
    ],
)
async def test_what_cannot_be_answered(start: Start, path: str, body: Any, status: int) -> None:
    code, answer = await _post(await start(), path, body)
    assert (code, answer["error"]["code"]) == (status, status)


async def test_a_rendered_chat_is_a_generate_request(start: Start, tokens: Tokens) -> None:
    worker = await start()
    chat = {"messages": ASKED, "max_tokens": 5, "stop": "x", "cache_salt": "s", "stream": False}
    _, rendered = await _post(worker, "/v1/chat/completions/render", chat)
    assert rendered["token_ids"] == _ids(tokens)
    sampling = rendered["sampling_params"]
    assert (sampling["max_tokens"], sampling["stop"], sampling["skip_special_tokens"]) == (5, ["x"], False)
    assert (rendered["cache_salt"], rendered["reasoning_ended"]) == ("s", False)
    status, answer = await _post(worker, "/inference/v1/generate", rendered)
    assert (status, len(answer["choices"][0]["token_ids"])) == (200, 5)


async def test_rendering_says_whether_reasoning_is_over(start: Start) -> None:
    chat = {"messages": ASKED, "thinking": {"type": "disabled"}}
    _, rendered = await _post(await start(), "/v1/chat/completions/render", chat)
    assert rendered["reasoning_ended"] is True


async def test_each_prompt_of_a_completion_is_rendered(start: Start) -> None:
    _, rendered = await _post(await start(), "/v1/completions/render", {"prompt": [[1, 2], [3]]})
    assert [one["token_ids"] for one in rendered] == [[1, 2], [3]]
    _, rendered = await _post(await start(), "/v1/completions/render", {"prompt": "ab"})
    assert [one["token_ids"] for one in rendered] == [[97, 98]]


async def test_without_scale_out_some_endpoints_are_refused(start: Start) -> None:
    worker = await start(disable_scale_out=True)
    for path in (
        "/inference/v1/generate",
        "/inference/v1/abort_requests",
        "/abort_requests",
        "/v1/chat/completions/render",
        "/v1/completions/render",
    ):
        assert (await _post(worker, path, {}))[0] == 403
    assert (await _post(worker, "/tokenize", {"prompt": "a"}))[0] == 200
