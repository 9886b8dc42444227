"""openai-python against the demo: what its users do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

MODEL = "moonshotai/Kimi-K3"
USER: Any = [{"role": "user", "content": "Write a one-sentence readiness check."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


def test_a_chat_answers_with_reasoning_content_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=256, temperature=0.7)
    message: Any = answer.choices[0].message
    assert message.content
    assert message.reasoning_content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_is_the_same_answer_in_pieces(client: openai.OpenAI) -> None:
    whole: Any = client.chat.completions.create(model=MODEL, messages=USER).choices[0].message
    stream = client.chat.completions.create(
        model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    deltas: list[Any] = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.content
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == whole.reasoning_content
    assert chunks[-1].usage is not None


def test_the_stream_helper_accumulates_a_tool_call(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=USER, tools=[WEATHER]) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0]
    assert message.finish_reason == "tool_calls"
    assert message.message.tool_calls
    arguments = json.loads(message.message.tool_calls[0].function.arguments)
    assert arguments.keys() == {"city", "days"}


def test_a_tool_loop_goes_on_after_the_tools_answer(client: openai.OpenAI) -> None:
    first: Any = (
        client.chat.completions.create(model=MODEL, messages=USER, tools=[WEATHER]).choices[0].message
    )
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "12 degrees"}
    history: Any = [*USER, first.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(
        model=MODEL, messages=history, tools=[WEATHER], tool_choice="none"
    )
    assert second.choices[0].message.content


def test_a_completion_takes_text_and_ids(client: openai.OpenAI) -> None:
    for prompt in ("Once upon a time", [1, 2, 3, 4]):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=5)
        assert answer.choices[0].text
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=USER)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=USER, temperature=3)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert wrong.value.param == "temperature"


async def test_many_streams_at_once_each_get_their_own_answer(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:

        async def ask(number: int) -> str:
            messages: Any = [{"role": "user", "content": f"number {number} please"}]
            stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        answers = await asyncio.gather(*map(ask, range(16)))
    assert all(f"number {number} please" in answer for number, answer in enumerate(answers))
