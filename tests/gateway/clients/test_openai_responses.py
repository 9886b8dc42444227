"""openai-python's responses against the demo, which stores nothing."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

MODEL = "moonshotai/Kimi-K3"
USER = "Write a one-sentence readiness check."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


def test_a_response_has_reasoning_and_text_and_its_usage(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input=USER, instructions="Be brief.", temperature=0.7)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output_text
    assert (answer.status, answer.instructions, answer.temperature) == ("completed", "Be brief.", 0.7)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details.reasoning_tokens > 0


def test_a_stream_has_numbered_events_and_the_same_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input=USER)
    with client.responses.stream(model=MODEL, input=USER) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert final.output_text == whole.output_text
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    thought = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    reasoning: Any = whole.output[0]
    assert "".join(thought) == reasoning.content[0].text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_goes_on_after_the_tools_answer(client: openai.OpenAI, streamed: bool) -> None:
    if streamed:
        with client.responses.stream(model=MODEL, input=USER, tools=[WEATHER]) as stream:
            pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
            first = stream.get_final_response()
    else:
        first = client.responses.create(model=MODEL, input=USER, tools=[WEATHER])
    call: Any = next(item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments).keys() == {"city", "days"}
    if streamed:
        assert "".join(pieces) == call.arguments
    history: Any = [{"role": "user", "content": USER}]
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"})
    second = client.responses.create(model=MODEL, input=history, tools=[WEATHER], tool_choice="none")
    assert second.output_text


def test_what_is_cut_off_is_incomplete(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input=USER, max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.max_output_tokens == 3


def test_log_probabilities_are_those_of_the_text(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, input=USER, include=["message.output_text.logprobs"], top_logprobs=2
    )
    message: Any = answer.output[-1]
    logprobs = message.content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in logprobs).decode() == answer.output_text
    assert {len(entry.top_logprobs) for entry in logprobs} == {2}


def test_a_format_is_kept(client: openai.OpenAI) -> None:
    class Check(BaseModel):
        ready: bool

    answer = client.responses.parse(model=MODEL, input=USER, text_format=Check)
    assert isinstance(answer.output_parsed, Check)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, **{"input": USER, **fields})
    assert refused.value.param == param
