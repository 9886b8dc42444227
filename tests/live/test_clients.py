"""The Python clients of both APIs, in front of a real engine that is made to say what the tests want."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.live.rig import Rig
from tests.live.vocabulary import THINK_END, answer, tool_answer
from tests.live.worker import MODEL

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ARGUMENTS: dict[str, object] = {"city": "Oslo"}


@pytest.fixture(name="claude")
def claude_fixture(rig: Rig) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=rig.gateway.url, api_key="none", max_retries=0) as client:
        yield client


def scripted(rig: Rig, script: str) -> dict[str, Any]:
    """Fields that make the worker say it."""
    return {"extra_body": {"vllm_xargs": {"script_ids": rig.vocabulary.script(script)}, "temperature": 0}}


class TestMessages:
    def ask(self, rig: Rig, claude: anthropic.Anthropic, streamed: bool, script: str, **fields: Any) -> Any:
        fields |= {"model": MODEL, "max_tokens": 300, **scripted(rig, script)}
        fields.setdefault("messages", [{"role": "user", "content": "What is it?"}])
        if not streamed:
            return claude.messages.create(**fields)
        with claude.messages.stream(**fields) as stream:
            return stream.get_final_message()

    @pytest.mark.parametrize("streamed", [False, True])
    def test_thinking_text_and_usage(self, rig: Rig, claude: anthropic.Anthropic, streamed: bool) -> None:
        script = answer("I think 想.", "It is four.")
        message = self.ask(rig, claude, streamed, script)
        thinking, text = message.content
        assert (thinking.thinking, text.text) == ("I think 想.", "It is four.")
        assert message.stop_reason == "end_turn"
        assert message.usage.output_tokens == len(rig.vocabulary.script(script))
        counted = claude.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "What is it?"}]
        )
        assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens

    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_tool_loop(self, rig: Rig, claude: anthropic.Anthropic, streamed: bool) -> None:
        tools = [{"name": "get_weather", "input_schema": SCHEMA}]
        script = tool_answer("Hm.", "I look.", "get_weather", ARGUMENTS)
        first = self.ask(rig, claude, streamed, script, tools=tools)
        call = first.content[-1]
        assert (first.stop_reason, call.name, call.input) == ("tool_use", "get_weather", ARGUMENTS)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        history = [
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = self.ask(rig, claude, streamed, answer("So.", "Cold."), tools=tools, messages=history)
        assert second.content[-1].text == "Cold."

    def test_a_stop_sequence(self, rig: Rig, claude: anthropic.Anthropic) -> None:
        message = self.ask(rig, claude, False, answer("Hm.", "One two three."), stop_sequences=[" three"])
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " three")
        assert message.content[-1].text == "One two"


class TestResponses:
    def test_a_response_streamed_and_whole(self, rig: Rig) -> None:
        fields: dict[str, Any] = {"model": MODEL, "input": "What is it?"} | scripted(
            rig, answer("Hm.", "Four.")
        )
        whole = rig.client.responses.create(**fields)
        with rig.client.responses.stream(**fields) as stream:
            numbers = [event.sequence_number for event in stream]
            streamed = stream.get_final_response()
        assert whole.output_text == streamed.output_text == "Four."
        assert numbers == list(range(len(numbers)))
        assert whole.usage is not None
        assert whole.usage.output_tokens == len(rig.vocabulary.script(answer("Hm.", "Four.")))

    def test_a_tool_loop(self, rig: Rig) -> None:
        tools: Any = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]
        script = tool_answer("Hm.", "I look.", "get_weather", ARGUMENTS)
        first = rig.client.responses.create(
            model=MODEL, input="What is it?", tools=tools, **scripted(rig, script)
        )
        call: Any = first.output[-1]
        assert (call.name, json.loads(call.arguments)) == ("get_weather", ARGUMENTS)
        history: Any = [{"role": "user", "content": "What is it?"}, *(i.to_dict() for i in first.output)]
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"})
        second = rig.client.responses.create(
            model=MODEL, input=history, tools=tools, **scripted(rig, answer("So.", "Cold."))
        )
        assert second.output_text == "Cold."


@pytest.mark.parametrize("streamed", [False, True])
def test_log_probabilities_spell_what_was_generated(rig: Rig, streamed: bool) -> None:
    script = answer("Hm.", "四 four.")
    fields = rig.body([{"role": "user", "content": "Hi"}], script=script, logprobs=True, top_logprobs=3)
    if streamed:
        chunks = list(rig.client.chat.completions.create(stream=True, **fields))
        found = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
        entries = [entry for one in found for entry in one.content or ()]
    else:
        choice = rig.client.chat.completions.create(**fields).choices[0]
        entries = list(choice.logprobs.content)
    spelled = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert spelled.startswith("Hm." + THINK_END)
    assert "四 four." in spelled
    assert {len(entry.top_logprobs) for entry in entries} == {3}
    assert all(entry.logprob <= 0 for entry in entries)


def test_several_prompts_at_once(rig: Rig) -> None:
    ids = rig.vocabulary.ordinary("Once upon a time")
    body = rig.client.completions.create(
        model=MODEL,
        prompt=[ids, ids[:2]],
        max_tokens=4,
        temperature=0,
        logprobs=2,
        extra_body={"echo": False},
    )
    assert [choice.index for choice in body.choices] == [0, 1]
    assert body.usage is not None
    assert (body.usage.prompt_tokens, body.usage.completion_tokens) == (len(ids) + 2, 8)
    assert all(len(choice.logprobs.tokens) == 4 for choice in body.choices if choice.logprobs)


def test_stop_tokens_and_strings_are_cut_and_counted(rig: Rig) -> None:
    script = answer("", "One two three four.").partition("<|open|>response<|sep|>")[2]
    (token,) = rig.vocabulary.ordinary(" three")
    fields = rig.body([{"role": "user", "content": "Hi"}], script=script, thinking=False)
    fields["extra_body"] |= {"stop_token_ids": [token]}
    by_token = rig.client.chat.completions.create(**fields)
    fields = rig.body([{"role": "user", "content": "Hi"}], script=script, thinking=False, stop=" three")
    by_text = rig.client.chat.completions.create(**fields)
    for got in (by_token, by_text):
        assert (got.choices[0].message.content, got.choices[0].finish_reason) == ("One two", "stop")
        assert got.usage.completion_tokens == len(rig.vocabulary.ordinary("One two three"))


def test_an_echoed_prompt_is_as_likely_as_it_was_to_generate(rig: Rig) -> None:
    """What the engine says of tokens that it chose, and of the same ones as a prompt, is the same."""
    ids = rig.vocabulary.ordinary("Once upon a time there was a")
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "logprobs": 1}
    made = rig.client.completions.create(
        prompt=ids, max_tokens=4, extra_body={"vllm_xargs": {"script_ids": ids[:4]}}, **fields
    ).choices[0]
    echoed = rig.client.completions.create(
        prompt=[*ids, *ids[:4]], max_tokens=1, echo=True, **fields
    ).choices[0]
    assert made.logprobs is not None
    assert echoed.logprobs is not None
    assert echoed.logprobs.tokens[len(ids) : len(ids) + 4] == made.logprobs.tokens
    values = echoed.logprobs.token_logprobs
    assert values is not None
    assert values[0] is None
    assert all(isinstance(value, float) and value <= 0 for value in values[1:])
