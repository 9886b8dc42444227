"""OpenAI's responses: what a request becomes as a chat, and what events become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api.head import Head
from gateway.api.responses.render import ResponseStream, ResponseWhole
from gateway.api.responses.request import read_responses
from gateway.serving.errors import RequestError, bad_request
from parsers.base import ContentDelta, Finish, ReasoningDelta, ToolArgumentsDelta, ToolCallStart
from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.api.test_messages import events
from tests.gateway.api.test_render import PARSERS, USAGE, Parser
from tests.gateway.raw_worker import broken_stream, tokens

BODY = {"model": MODEL, "input": "Hi"}


def chat(**fields: Any) -> dict[str, Any]:
    return read_responses(msgspec.json.encode(BODY | fields)).values


def head() -> Head:
    return Head(id="resp_1", created=7, model="m", choices=1, prompt_tokens=3, values=chat())


def test_text_is_what_the_user_says_after_the_instructions() -> None:
    assert chat(instructions="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_items_of_one_turn_are_one_message() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "Done."},
        {"role": "assistant", "content": "Really."},
    ]

    def call(call_id: str, name: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    assert chat(input=items)["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [call("c1", "f"), call("c2", "g")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "content": "Done.", "reasoning_content": "so"},
        {"role": "assistant", "content": "Really."},
    ]


def test_tools_choices_and_formats_have_the_chats_shapes() -> None:
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in "fg"]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    values = chat(tools=tools, tool_choice=allowed, text={"format": schema}, reasoning={"effort": "low"})
    function = {"name": "g", "parameters": {"type": "object"}}
    assert values["tools"] == [{"type": "function", "function": function}]
    assert values["tool_choice"] == "required"
    assert values["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert values["reasoning_effort"] == "low"
    named = chat(tools=tools, tool_choice={"type": "function", "name": "f"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].function.name"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.json_schema.schema"),
        ({"text": {"format": {}}}, "text.format"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_numbers_are_repeated_as_they_were_spelled() -> None:
    fields = read_responses(b'{"model":"m","input":"x","temperature":0.10,"n":3}')
    assert fields.sampling == {"temperature": b"0.10"}
    assert "n" not in fields.values
    shown = Head(id="resp_1", created=7, model="m", choices=1, prompt_tokens=3, values=fields.values)
    assert b'"temperature":0.10' in ResponseWhole(shown).body(USAGE, PARSERS)


EVENTS = [
    ReasoningDelta("hm"),
    ContentDelta("a"),
    ContentDelta("b"),
    ToolCallStart(0, "c1", "f"),
    ToolArgumentsDelta(0, "{}"),
    Finish("tool_calls"),
]


def test_a_stream_opens_and_closes_each_item_in_order_and_numbers_its_events() -> None:
    stream = ResponseStream(head())
    stream.emit(0, EVENTS)
    found = events(stream.end(1, USAGE))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["output_index"] for event in found if "output_index" in event] == [0] * 6 + [1] * 7 + [
        2
    ] * 4
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"]["output"] == done


def test_a_whole_response_has_the_same_output_as_a_streamed_one() -> None:
    stream, whole = ResponseStream(head()), ResponseWhole(head())
    for renderer in (stream, whole):
        renderer.emit(0, EVENTS)
    assert msgspec.json.decode(whole.body(USAGE, PARSERS)) == events(stream.end(1, USAGE))[-1]["response"]


def test_what_is_cut_off_is_incomplete_in_its_last_item() -> None:
    stream = ResponseStream(head())
    stream.emit(0, [ReasoningDelta("a"), ContentDelta("b"), Finish("length")])
    last = events(stream.end(1, USAGE))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in last["response"]["output"]] == ["completed", "incomplete"]


def test_a_whole_response_leaves_out_what_its_parser_takes_back() -> None:
    whole, parser = ResponseWhole(head()), Parser()
    parser.reasoning_retracted, parser.incomplete_calls = True, (0,)
    whole.emit(0, EVENTS)
    body = msgspec.json.decode(whole.body(USAGE, [parser]))
    assert [item["type"] for item in body["output"]] == ["message"]


def test_a_stream_that_breaks_says_so_and_ends() -> None:
    stream = ResponseStream(head())
    stream.emit(0, [ContentDelta("a")])
    error, failed = events(stream.fail(bad_request("no", code="bad")))[-2:]
    assert (error["type"], error["message"]) == ("error", "no")
    assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "bad")


async def test_a_worker_that_dies_in_the_middle_fails_the_response() -> None:
    async with gateway([broken_stream(tokens(65))]) as gw:
        response = await gw.post("/v1/responses", BODY | {"stream": True})
        found = events(await response.read())
    assert found[-1]["response"]["status"] == "failed"
