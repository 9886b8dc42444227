"""Chats: what the format's parser makes of an output, whole and in chunks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from simulator.script import turn_ids
from simulator.tokens import Tokens

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]
ASKED = [{"role": "user", "content": "what is the weather?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
}
END_OF_MESSAGE = 163_586


async def _post(worker: RunningWorker, **fields: Any) -> tuple[int, Any]:
    body = {"messages": ASKED} | fields
    async with (
        aiohttp.ClientSession() as client,
        client.post(worker.url + "/v1/chat/completions", json=body) as response,
    ):
        text = await response.text()
    if not text.startswith("data: "):
        return response.status, json.loads(text)
    *events, done, rest = [part.removeprefix("data: ") for part in text.split("\n\n")]
    assert (done, rest) == ("[DONE]", "")
    return response.status, [json.loads(event) for event in events]


async def _said(worker: RunningWorker, **fields: Any) -> Any:
    status, answer = await _post(worker, **fields)
    assert status == 200, answer
    return answer


def _turn(tokens: Tokens, **turn: Any) -> list[int]:
    return turn_ids({"role": "assistant", "content": "", **turn}, tokens, thinking=True)


def _joined(chunks: list[Any], field: str) -> str:
    return "".join(chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks)


async def test_reasoning_and_content(start: Start, tokens: Tokens) -> None:
    ids = _turn(tokens, reasoning_content="I think.", content="It rains ☂")
    answer = await _said(await start(), vllm_xargs={"script_ids": ids})
    (choice,) = answer["choices"]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("I think.", "It rains ☂")
    assert "tool_calls" not in choice["message"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", END_OF_MESSAGE)
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(ids)
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < len(ids)


async def test_the_stream_says_the_same(start: Start, tokens: Tokens) -> None:
    ids = _turn(tokens, reasoning_content="I think.", content="It rains ☂")
    opening, *chunks = await _said(await start(), vllm_xargs={"script_ids": ids}, stream=True)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert _joined(chunks, "reasoning") == "I think."
    assert _joined(chunks, "content") == "It rains ☂"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "stop"
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_call_comes_out_in_one_piece(start: Start, tokens: Tokens) -> None:
    script = {"script_ids": _turn(tokens, reasoning_content="I look.", tool_calls=[CALL])}
    worker = await start()
    whole = await _said(worker, vllm_xargs=script, tools=[WEATHER])
    (choice,) = whole["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert call["id"].startswith("chatcmpl-tool-")
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    chunks = await _said(worker, vllm_xargs=script, tools=[WEATHER], stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    (call,) = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert (call["index"], chunks[-1]["choices"][0]["finish_reason"]) == (0, "tool_calls")


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
async def test_a_named_tool_is_the_one_that_is_called(start: Start, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    answer = await _said(await start(), tools=[WEATHER, TIME], tool_choice=choice)
    (said,) = answer["choices"]
    assert [call["function"]["name"] for call in said["message"]["tool_calls"]] == [name]
    assert said["finish_reason"] == "stop"


async def test_hidden_reasoning_hides_its_ids_and_logprobs(start: Start, tokens: Tokens) -> None:
    ids = _turn(tokens, reasoning_content="Secret.", content="Open.")
    options = {"include_reasoning": False, "return_token_ids": True, "logprobs": True}
    worker = await start()
    answer = await _said(worker, vllm_xargs={"script_ids": ids}, **options)
    (choice,) = answer["choices"]
    assert choice["message"]["reasoning"] is None
    assert (choice["message"]["content"], choice["logprobs"], choice["token_ids"]) == ("Open.", None, None)
    chunks = await _said(worker, vllm_xargs={"script_ids": ids}, stream=True, **options)
    assert _joined(chunks, "reasoning") == ""
    assert _joined(chunks, "content") == "Open."


async def test_each_choice_has_its_own_parser(start: Start, tokens: Tokens) -> None:
    scripts = [_turn(tokens, content=text) for text in ("one", "two")]
    script = {"script_ids": scripts, "tokens_per_step": 3}
    chunks = await _said(await start(), n=2, vllm_xargs=script, stream=True)
    roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
    assert roles == [0, 1]
    for index, text in enumerate(("one", "two")):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert _joined(own, "content") == text


async def test_a_stop_string_is_not_part_of_the_content(start: Start, tokens: Tokens) -> None:
    ids = _turn(tokens, content="one STOP two")
    answer = await _said(await start(), vllm_xargs={"script_ids": ids}, stop="STOP")
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "STOP")


async def test_usage_on_every_chunk(start: Start, tokens: Tokens) -> None:
    ids = _turn(tokens, content="yes")
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await _said(await start(), vllm_xargs={"script_ids": ids}, stream=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert (counts[-1], chunks[-1]["choices"]) == (len(ids), [])


async def test_what_the_format_does_not_take_is_a_400(start: Start) -> None:
    worker = await start()
    status, answer = await _post(worker, messages=[{"role": "nobody", "content": "x"}])
    assert (status, answer["error"]["code"]) == (400, 400)
    status, answer = await _post(worker, messages=[])
    assert status == 400
    status, answer = await _post(
        worker, tools=[TIME], tool_choice={"type": "function", "function": {"name": "x"}}
    )
    assert (status, answer["error"]["param"]) == (400, "tool_choice")


async def test_a_required_call_comes_after_a_result_too(start: Start) -> None:
    history = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    worker = await start()
    for choice, calls in (("auto", 0), ("required", 1)):
        answer = await _said(worker, messages=history, tools=[WEATHER], tool_choice=choice)
        assert len(answer["choices"][0]["message"].get("tool_calls", [])) == calls


async def test_json_and_choices_are_kept_to(start: Start) -> None:
    worker = await start()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await _said(worker, response_format=wanted)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"])["n"], int)
    answer = await _said(worker, structured_outputs={"choice": ["yes", "no"]})
    assert answer["choices"][0]["message"]["content"] == "yes"
