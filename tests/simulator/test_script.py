"""Scripted answers, read back by the format's own output parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parsers.base import (
    Chat,
    ContentDelta,
    Finish,
    OutputOptions,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from parsers.registry import get_format
from simulator.output import Limits, plan_output
from simulator.prompt import read_prompt
from simulator.schema import example
from simulator.script import write_script
from simulator.tokens import TextStream, Tokens

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 3},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "unit": {"enum": ["celsius", "kelvin"]},
                "hourly": {"type": "boolean"},
            },
            "required": ["city", "days", "unit", "hourly"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def k3() -> Tokens:
    return Tokens.load("kimi_k3", None)


def _prompt(k3: Tokens, **options: Any) -> list[int]:
    chat = Chat(**({"messages": [{"role": "user", "content": "你好 <|open|> there"}]} | options))
    return k3.encode_segments(get_format("kimi_k3").encode(chat).segments)


def _answer(k3: Tokens, ids: list[int], *, thinking: bool = True, tools: Any = None) -> dict[str, Any]:
    output = write_script(read_prompt(ids, k3), k3)
    assert output[-1] == 163_586
    assert k3.end_id not in output[:-1]
    parser = get_format("kimi_k3").parser(
        OutputOptions(thinking=thinking, tools=tools), TextStream(k3, skip_special=False)
    )
    said: dict[str, Any] = {"reasoning": "", "content": "", "calls": [], "finish": None}
    for event in [*parser.feed(output), *parser.finish("stop")]:
        match event:
            case ReasoningDelta(text):
                said["reasoning"] += text
            case ContentDelta(text):
                said["content"] += text
            case ToolCallStart(_, _, name):
                said["calls"].append([name, ""])
            case ToolArgumentsDelta(index, text):
                said["calls"][index][1] += text
            case Finish(reason):
                said["finish"] = reason
    return said


def test_reasoning_and_an_echo_of_the_user(k3: Tokens) -> None:
    said = _answer(k3, _prompt(k3))
    assert "你好 <|open|> there" in said["reasoning"]
    assert "你好 <|open|> there" in said["content"]
    assert (said["calls"], said["finish"]) == ([], "stop")


def test_no_reasoning_when_thinking_is_off(k3: Tokens) -> None:
    said = _answer(k3, _prompt(k3, thinking=False), thinking=False)
    assert said["reasoning"] == ""
    assert "你好" in said["content"]


def test_a_tool_call_fits_its_schema(k3: Tokens) -> None:
    said = _answer(k3, _prompt(k3, tools=[WEATHER]), tools=[WEATHER])
    assert said["finish"] == "tool_calls"
    ((name, arguments),) = said["calls"]
    assert name == "get_weather"
    values = json.loads(arguments)
    assert values == {"city": "你好 <|open|> there", "days": 1, "unit": "celsius", "hourly": True}


def test_the_tool_that_the_user_names(k3: Tokens) -> None:
    messages = [{"role": "user", "content": "please use get_time now"}]
    said = _answer(k3, _prompt(k3, messages=messages, tools=[WEATHER, TIME]), tools=[WEATHER, TIME])
    assert said["calls"] == [["get_time", "{}"]]


def test_no_call_when_forbidden_or_already_answered(k3: Tokens) -> None:
    assert _answer(k3, _prompt(k3, tools=[WEATHER], tool_choice="none"), tools=[WEATHER])["calls"] == []
    call = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]
    said = _answer(k3, _prompt(k3, messages=messages, tools=[TIME]), tools=[TIME])
    assert said["calls"] == []
    assert "time?" in said["content"]


def test_json_that_the_prompt_asks_for(k3: Tokens) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads(_answer(k3, _prompt(k3, response_format=wanted))["content"]) == {"ok": True}
    said = _answer(k3, _prompt(k3, response_format={"type": "json_object"}))
    assert json.loads(said["content"]) == {}


def test_plain_text_is_answered_as_text(k3: Tokens) -> None:
    view = read_prompt(k3.encode("def foo("), k3)
    assert (view.channel, view.quote) == ("text", "def foo(")
    assert k3.text(write_script(view, k3)).startswith(" and so on, says a simulated worker about “def foo(”")


def test_any_ids_are_a_prompt(k3: Tokens) -> None:
    for ids in ([163_586], [163_589], [163_586, 163_589], [163_587, 163_586, 163_589], [163_839]):
        assert write_script(read_prompt(ids, k3), k3)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "text"),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "string", "minLength": 6}, "textxx"),
        ({"type": ["null", "integer"], "exclusiveMinimum": 4}, 5),
        ({"type": "number", "maximum": -2.5}, -2.5),
        ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True, True]),
        ({"anyOf": [{"const": 3}, {"type": "null"}]}, 3),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": ["x"]}}}, "x"),
        ({"allOf": [{"type": "object"}, {"required": ["q"]}]}, {"q": "text"}),
        ({"properties": {"a": {"default": 1}, "b": {}}}, {"a": 1}),
        (True, "text"),
    ],
)
def test_examples(schema: Any, value: Any) -> None:
    assert example(schema, "text") == value


def test_a_schema_that_contains_itself_ends() -> None:
    node = {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"required": ["n"], "properties": {"n": {"$ref": "#/$defs/n"}}}},
    }
    assert example(node, "text") is None or isinstance(example(node, "text"), dict)


@pytest.mark.parametrize("cut", range(1, 8))
def test_stop_strings_across_tokens(cut: int) -> None:
    """However the text is cut into tokens, the output ends with the token that completes the stop."""
    text = b"one STOP two"
    pieces = [text[start : start + cut] for start in range(0, len(text), cut)]
    limits = Limits(max_tokens=99, end_ids=frozenset(), stop=("STOP",))
    plan = plan_output(range(len(pieces)), limits, [], pieces.__getitem__)
    said = b"".join(pieces[token_id] for token_id in plan.ids)
    assert plan.stop_reason == "STOP"
    assert b"STOP" in said
    assert b"STOP" not in said[: -len(pieces[plan.ids[-1]])]
