"""Anthropic's shapes: what a request becomes as a chat, what events become, how failures are said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api.anthropic.render import MessageStream, MessageWhole
from gateway.api.anthropic.request import read_messages
from gateway.api.head import Head
from gateway.serving.errors import RequestError
from parsers.base import ContentDelta, Finish, ReasoningDelta, ToolArgumentsDelta, ToolCallStart
from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_render import PARSERS, USAGE
from tests.gateway.api.test_server import say
from tests.gateway.raw_worker import broken_stream, status, stream, tokens

HEAD = Head(id="msg_1", created=7, model="m", choices=1, prompt_tokens=3)
HI: Any = [{"role": "user", "content": "Hi"}]
BODY = {"model": MODEL, "max_tokens": 50, "messages": HI}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def chat(**fields: Any) -> dict[str, Any]:
    return read_messages(msgspec.json.encode(BODY | fields)).values


def events(data: bytes) -> list[Any]:
    """Payloads, each under the name that it says itself."""
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, payload = block.split("\n")
        found.append(msgspec.json.decode(payload.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_history_becomes_messages_of_a_chat_in_order() -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, IMAGE]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I will."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 0.10}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    text = [{"type": "text", "text": "Be brief."}]
    assert chat(system=text, messages=history)["messages"] == [
        {"role": "system", "content": text},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I will.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x":0.1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "7"}]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]


def test_an_answer_that_is_begun_goes_on() -> None:
    messages = [*HI, {"role": "assistant", "content": "It is"}]
    assert chat(messages=messages)["messages"][-1] == {
        "role": "assistant",
        "content": "It is",
        "partial": True,
    }


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices_of_tools(choice: Any, expected: Any) -> None:
    tools = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    values = chat(tools=tools, tool_choice=choice | {"disable_parallel_tool_use": True})
    assert values["tool_choice"] == expected
    assert values["parallel_tool_calls"] is False
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert values["tools"] == [{"type": "function", "function": function}]


def test_switches_have_the_chats_names() -> None:
    schema = {"type": "object"}
    values = chat(
        thinking={"type": "enabled", "budget_tokens": 2000},
        stop_sequences=["a"],
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        metadata={"user_id": "u"},
        stream=True,
    )
    assert values["thinking"] == {"type": "enabled"}
    assert values["stop"] == ["a"]
    assert values["reasoning_effort"] == "low"
    assert values["response_format"]["json_schema"]["schema"] == schema
    assert values["stream_options"] == {"include_usage": True}


def test_numbers_stay_as_they_were_spelled_and_other_fields_go_on() -> None:
    fields = read_messages(
        b'{"model":"m","max_tokens":5,"messages":[],"temperature":0.10,"top_k":3,"n":2,"knob":[1]}'
    )
    assert fields.sampling == {"temperature": b"0.10", "top_k": b"3"}
    assert fields.top_level == {"knob": b"[1]"}
    assert "n" not in fields.values


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert f"`{param}`" in refused.value.message


def test_a_stream_has_one_block_at_a_time_between_a_start_and_a_stop() -> None:
    stream = MessageStream(HEAD)
    stream.emit(0, [ReasoningDelta("hm"), ReasoningDelta("!"), ContentDelta("a"), ToolCallStart(0, "t", "f")])
    stream.emit(0, [ToolArgumentsDelta(0, '{"x":'), ToolArgumentsDelta(0, "1}"), Finish("tool_calls")])
    found = events(stream.end(1, USAGE))
    shape = [(e["type"], e.get("index")) for e in found]
    assert shape == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("message_delta", None),
        ("message_stop", None),
    ]
    deltas = [e["delta"]["type"] for e in found if e["type"] == "content_block_delta"]
    assert deltas == [
        "thinking_delta",
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
        "input_json_delta",
    ]
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2]["usage"] == {
        "input_tokens": 2,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
        "output_tokens": 2,
    }


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (Finish("stop"), "end_turn", None),
        (Finish("stop", "END"), "stop_sequence", "END"),
        (Finish("stop", 7), "end_turn", None),
        (Finish("length"), "max_tokens", None),
        (Finish("tool_calls"), "tool_use", None),
    ],
)
def test_why_it_ended(end: Finish, reason: str, sequence: str | None) -> None:
    whole, stream = MessageWhole(HEAD), MessageStream(HEAD)
    for renderer in (whole, stream):
        renderer.emit(0, [end])
    body = msgspec.json.decode(whole.body(USAGE, PARSERS))
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    assert events(stream.end(1, USAGE))[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_call_whose_arguments_are_no_object_has_them_as_text() -> None:
    whole = MessageWhole(HEAD)
    whole.emit(0, [ToolCallStart(0, "t", "f"), ToolArgumentsDelta(0, "[1"), Finish("tool_calls")])
    assert msgspec.json.decode(whole.body(USAGE, PARSERS))["content"][0]["input"] == {"raw": "[1"}


async def test_failures_are_in_anthropics_shape_wherever_they_come_from() -> None:
    refusal = status(400, b'{"error":{"message":"no"}}')
    async with gateway([refusal, broken_stream(tokens(65))]) as gw:
        refused = await gw.post("/v1/messages", BODY)
        broken = await gw.post("/v1/messages", BODY | {"stream": True})
        unknown = await gw.post("/v1/messages/batches", BODY)
        wrong = await gw.get("/v1/messages/count_tokens")
        for response, code, kind in (
            (refused, 400, "invalid_request_error"),
            (unknown, 404, "not_found_error"),
            (wrong, 405, "invalid_request_error"),
        ):
            body = await response.json()
            assert (response.status, body["type"], body["error"]["type"]) == (code, "error", kind)
        last = events(await broken.read())[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


async def test_every_answer_has_its_id_where_anthropics_clients_look() -> None:
    async with gateway([say(65), say(65)]) as gw:
        for fields in ({}, {"stream": True}, {"max_tokens": 0}):
            response = await gw.post("/v1/messages", BODY | fields)
            assert response.headers["request-id"] == response.headers["X-Request-Id"]
        assert (await response.json())["request_id"] == response.headers["request-id"]


async def test_an_answer_comes_streamed_and_whole() -> None:
    async with gateway([say(65), say(65)]) as gw:
        whole = await (await gw.post("/v1/messages", BODY | {"thinking": {"type": "disabled"}})).json()
        response = await gw.post("/v1/messages?beta=true", BODY | {"stream": True})
        found = events(await response.read())
    assert whole["content"][0]["type"] == "text"
    assert (found[0]["type"], found[-1]["type"]) == ("message_start", "message_stop")


async def test_a_pass_through_workers_events_keep_their_names() -> None:
    own = [{"type": "message_start", "message": {}}, {"type": "message_stop"}]
    async with gateway([stream(*own)], endpoint="openai") as gw:
        response = await gw.post("/v1/messages", BODY | {"stream": True})
        data = await response.read()
        assert gw.workers[0].requests[0][0] == "/v1/messages"
    assert data.startswith(b"event: message_start\ndata: ")
    assert b"event: message_stop\ndata: " in data
