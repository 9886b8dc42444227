"""anthropic-python against the demo: messages, tools, streams, counts, errors."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

MODEL = "moonshotai/Kimi-K3"
USER: Any = [{"role": "user", "content": "Write a one-sentence readiness check."}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


def kinds(message: anthropic.types.Message) -> list[str]:
    return [block.type for block in message.content]


def test_a_message_has_thinking_and_text_and_its_usage(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model=MODEL, max_tokens=500, messages=USER, system="Be brief.")
    assert kinds(message) == ["thinking", "text"]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0
    assert message.usage.cache_read_input_tokens is not None
    counted = claude.messages.count_tokens(model=MODEL, messages=USER, system="Be brief.")
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_a_stream_is_the_same_message_in_pieces(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model=MODEL, max_tokens=500, messages=USER)
    with claude.messages.stream(model=MODEL, max_tokens=500, messages=USER) as stream:
        types = [event.type for event in stream]
        streamed = stream.get_final_message()
    texts = [getattr(block, "text", None) or getattr(block, "thinking", None) for block in whole.content]
    assert [getattr(b, "text", None) or getattr(b, "thinking", None) for b in streamed.content] == texts
    assert kinds(streamed) == kinds(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert types[0] == "message_start"
    assert types[-1] == "message_stop"


def test_thinking_can_be_switched_off(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model=MODEL, max_tokens=500, messages=USER, thinking={"type": "disabled"}
    )
    assert kinds(message) == ["text"]


def test_a_limit_is_why_a_message_ends(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model=MODEL, max_tokens=3, messages=USER)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model=MODEL, max_tokens=500, messages=USER, thinking={"type": "disabled"})
    assert isinstance(whole.content[0], anthropic.types.TextBlock)
    text = whole.content[0].text
    stop = text[5:9]
    cut = claude.messages.create(
        model=MODEL, max_tokens=500, messages=USER, stop_sequences=[stop], thinking={"type": "disabled"}
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert isinstance(cut.content[0], anthropic.types.TextBlock)
    assert cut.content[0].text == text[: text.index(stop)]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_goes_on_after_the_tools_answer(claude: anthropic.Anthropic, streamed: bool) -> None:
    if streamed:
        with claude.messages.stream(model=MODEL, max_tokens=500, messages=USER, tools=[WEATHER]) as stream:
            first = stream.get_final_message()
    else:
        first = claude.messages.create(model=MODEL, max_tokens=500, messages=USER, tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    call = next(block for block in first.content if block.type == "tool_use")
    assert call.name == "get_weather"
    assert isinstance(call.input, dict)
    assert call.input.keys() == {"city", "days"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
    history: Any = [
        *USER,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = claude.messages.create(
        model=MODEL, max_tokens=500, messages=history, tools=[WEATHER], tool_choice={"type": "none"}
    )
    assert "text" in kinds(second)


def test_errors_are_the_sdks_own(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="nope", max_tokens=5, messages=USER)
    with pytest.raises(anthropic.BadRequestError) as wrong:
        claude.messages.create(model=MODEL, max_tokens=5, messages=USER, extra_body={"temperature": 3})
    with pytest.raises(anthropic.BadRequestError) as server_tool:
        claude.messages.create(
            model=MODEL, max_tokens=5, messages=USER, tools=[{"type": "bash_20250124", "name": "bash"}]
        )
    body: Any = missing.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert "temperature" in wrong.value.message
    assert "tools[0]" in server_tool.value.message
