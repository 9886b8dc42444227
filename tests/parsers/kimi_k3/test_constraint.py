from __future__ import annotations

from typing import Any

import pytest

from parsers.base import Chat, Constraint, FormatError, Segment
from parsers.kimi_k3.encoding import encode_chat
from tests.parsers.kimi_k3.material import argument, call, end, segments_of, tag, tools
from tests.parsers.structural import accepts

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": POINT}}
DONE = end("message")


def tool(name: str = "run", parameters: Any = POINT, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


STRICT = tool(strict=True)


def constraint(*, thinking: bool = True, **fields: Any) -> Constraint | None:
    chat = Chat(messages=[{"role": "user", "content": "Hi"}], thinking=thinking, **fields)
    return encode_chat(chat).constraint


def allows(markup: str | list[Segment], *, thinking: bool = True, **fields: Any) -> bool:
    """Whether the chat's constraint allows an answer, given from the prompt's end on."""
    found = constraint(thinking=thinking, **fields)
    assert found is not None
    assert found.kind == "structural_tag"
    return accepts(found.value, segments_of(markup) if isinstance(markup, str) else markup)


def said(content: str, *channels: str, thought: str = "hm") -> str:
    channel = tag("response") + content + end("response")
    return thought + end("think") + channel + "".join(channels) + DONE


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [tool()]},
        {"tools": [tool()], "tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [STRICT], "tool_choice": "none"},
        {"tool_choice": "required"},
        {"response_format": {"type": "text"}},
    ],
)
def test_a_chat_that_asks_for_no_form_has_no_constraint(fields: dict[str, Any]) -> None:
    assert constraint(**fields) is None


class TestResponses:
    def test_json_of_the_schema_is_allowed_and_nothing_else(self) -> None:
        fields = {"response_format": SCHEMA_FORMAT}
        assert allows(said('{"x": 1, "label": "a"}'), **fields)
        for wrong in ('{"label": "a"}', '{"x": "1"}', "text", "", '{"x": 1}, '):
            assert not allows(said(wrong), **fields)
        assert not allows(said('{"x": 1}', tools(call("run"))), **fields)

    def test_thinking_is_free_and_need_not_be_there(self) -> None:
        fields = {"response_format": {"type": "json_object"}}
        quoted = [
            Segment("a marker: <|close|>think<|sep|> ", False),
            *segments_of(said("{}", thought="")),
        ]
        assert allows(quoted, **fields)
        assert allows(said("{}").removeprefix("hm" + end("think")), **fields)
        assert not allows(said("{}", thought=tag("tools")), **fields)

    def test_without_thinking_the_answer_begins_in_the_response(self) -> None:
        fields = {"response_format": {"type": "json_object"}, "thinking": False}
        assert allows("{}" + end("response") + DONE, **fields)
        assert not allows(said("{}"), **fields)

    @pytest.mark.parametrize(
        ("asked", "right", "wrong"),
        [
            ({"json": POINT}, '{"x": 1}', '{"y": 1}'),
            ({"json": True}, "[1]", "x"),
            ({"json_object": True}, '{"a": 1}', "[1]"),
            ({"regex": "[ab]{2}"}, "ab", "abc"),
            ({"choice": ["yes", "no"]}, "no", "maybe"),
            ({"structural_tag": {"format": {"type": "const_string", "value": "x"}}}, "x", "y"),
            ({"structural_tag": '{"format": {"type": "const_string", "value": "x"}}'}, "x", "y"),
        ],
    )
    def test_structured_outputs_are_about_the_response(
        self, asked: dict[str, Any], right: str, wrong: str
    ) -> None:
        assert allows(said(right), structured_outputs=asked)
        assert not allows(said(wrong), structured_outputs=asked)

    def test_with_tools_a_call_may_stand_for_the_response(self) -> None:
        fields = {"response_format": SCHEMA_FORMAT, "tools": [tool()]}
        assert allows(said('{"x": 1}'), **fields)
        assert allows(said("", tools(call("run"))), **fields)
        assert allows(said('{"x": 1}', tools(call("run"))), **fields)
        assert not allows(said(""), **fields)
        assert not allows(said("text", tools(call("run"))), **fields)

    def test_strings_in_it_hold_no_control_token_unless_their_length_is_bounded(self) -> None:
        found = constraint(response_format=SCHEMA_FORMAT)
        assert found is not None
        assert '"excludes": ["<|open|>"' in str(found.value).replace("'", '"')
        bounded = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
        found = constraint(structured_outputs={"json": bounded})
        assert found is not None
        assert "excludes'" not in str(found.value)


class TestCalls:
    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "run"}}])
    def test_a_required_call_must_come_and_be_of_a_declared_tool(self, choice: Any) -> None:
        fields = {"tools": [tool()], "tool_choice": choice}
        assert allows(said("Let me see.", tools(call("run", argument("anything", "1", "number")))), **fields)
        assert allows(said("", tools(call("run", index=12))), **fields)
        assert not allows(said("No."), **fields)
        assert not allows(said("", tools()), **fields)
        assert not allows(said("", tools(call("walk"))), **fields)

    def test_several_calls_are_allowed_unless_named_or_not_parallel(self) -> None:
        both = said("", tools(call("run"), call("walk", index=2)))
        fields = {"tools": [tool(), tool("walk")], "tool_choice": "required"}
        assert allows(both, **fields)
        assert not allows(both, parallel_tool_calls=False, **fields)
        named = {"type": "function", "function": {"name": "run"}}
        assert not allows(said("", tools(call("run"), call("run"))), **{**fields, "tool_choice": named})
        assert not allows(said("", tools(call("walk"))), **{**fields, "tool_choice": named})

    def test_a_strict_tool_is_held_to_its_schema_and_may_be_left_alone(self) -> None:
        fields = {"tools": [STRICT, tool("walk")]}
        x, label = argument("x", "1", "number"), argument("label", "any <|text", "string")
        assert allows(said("No call."), **fields)
        assert allows(said("", tools(call("run", x, label))), **fields)
        assert allows(said("", tools(call("run", x), call("walk", argument("z", "?")))), **fields)
        for wrong in (
            call("run", label),
            call("run", x, x),
            call("run", argument("x", "1.5", "number")),
            call("run", argument("x", "1", "string")),
            call("run", x, argument("y", "1", "number")),
        ):
            assert not allows(said("", tools(wrong)), **fields)

    def test_tools_of_messages_count(self) -> None:
        messages = [{"role": "system", "tools": [tool()]}, {"role": "user", "content": "Hi"}]
        found = encode_chat(Chat(messages=messages, tool_choice="required")).constraint
        assert found is not None
        assert accepts(found.value, segments_of(said("", tools(call("run")))))

    def test_attributes_are_escaped_as_the_model_writes_them(self) -> None:
        odd = tool('a"b&c', {"type": "object", "properties": {'k"': {"type": "null"}}}, strict=True)
        written = call("a&quot;b&amp;c", argument("k&quot;", "null", "null"))
        assert allows(said("", tools(written)), tools=[odd], tool_choice="required")


class TestStrictArguments:
    @pytest.mark.parametrize(
        ("schema", "right", "wrong"),
        [
            ({"type": ["string", "null"]}, [("string", "a"), ("null", "null")], [("number", "1")]),
            ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [("number", "1"), ("string", "")], []),
            ({"enum": ["a", "b", 3, None]}, [("string", "b"), ("number", "3")], [("string", "c")]),
            ({"const": "a", "title": "T"}, [("string", "a")], [("string", "b"), ("number", "1")]),
            ({"$ref": "#/$defs/n"}, [("number", "7")], [("string", "7")]),
            ({"type": "array", "items": {"$ref": "#/$defs/n"}}, [("array", "[7]")], [("array", '["7"]')]),
            ({"type": "object"}, [("object", '{"a": 1}')], [("object", "1")]),
        ],
    )
    def test_a_property_is_an_element_for_each_type_it_may_have(
        self, schema: Any, right: list[tuple[str, str]], wrong: list[tuple[str, str]]
    ) -> None:
        parameters = {
            "type": "object",
            "properties": {"v": schema},
            "required": ["v"],
            "$defs": {"n": {"type": "integer"}},
        }
        fields = {"tools": [tool(parameters=parameters, strict=True)], "tool_choice": "required"}
        for kind, text in right:
            assert allows(said("", tools(call("run", argument("v", text, kind)))), **fields)
        for kind, text in wrong:
            assert not allows(said("", tools(call("run", argument("v", text, kind)))), **fields)

    @pytest.mark.parametrize(
        "parameters",
        [
            {"type": "object", "properties": {"v": {"type": "string", "maxLength": 3}}},
            {"type": "object", "properties": {"v": {"type": "string", "pattern": "a+"}}},
            {"type": "object", "properties": {"v": {}}},
            {"type": "object", "properties": {"v": {"type": "array", "items": {"$ref": "#"}}}},
            {"type": "object", "properties": {"v": {"enum": [""]}}},
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"anyOf": [{"type": "object"}]},
            {
                "type": "object",
                "properties": {"v": {"$ref": "#/$defs/loop"}},
                "$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]}},
            },
        ],
    )
    def test_what_elements_cannot_say_is_one_json_element(self, parameters: Any) -> None:
        fields = {"tools": [tool(parameters=parameters, strict=True)], "tool_choice": "required"}
        whole = tag("json", type="object") + "{}" + end("json")
        assert allows(said("", tools(call("run", whole))), **fields)
        assert not allows(said("", tools(call("run", argument("v", "x")))), **fields)

    def test_a_tool_without_properties_is_called_without_arguments(self) -> None:
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        fields = {"tools": [tool(parameters=nothing, strict=True)], "tool_choice": "required"}
        assert allows(said("", tools(call("run"))), **fields)
        assert not allows(said("", tools(call("run", argument("v", "x")))), **fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format.json_schema.schema.not",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {"json": {"multipleOf": 2}}}, "structured_outputs.json.multipleOf"),
        ({"structured_outputs": {"json": "x"}}, "structured_outputs.json"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        (
            {"tools": [tool(parameters={"uniqueItems": True}, strict=True)]},
            "tools[0].function.parameters.uniqueItems",
        ),
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "walk"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FormatError) as caught:
        constraint(**fields)
    assert caught.value.param == param


def test_a_schema_of_a_tool_in_a_message_is_refused_with_its_place() -> None:
    added = {"role": "system", "tools": [tool(), tool("walk", {"uniqueItems": True}, strict=True)]}
    with pytest.raises(FormatError) as caught:
        encode_chat(Chat(messages=[{"role": "user", "content": "Hi"}, added], tools=[tool("other")]))
    assert caught.value.param == "messages[1].tools[1].function.parameters.uniqueItems"


def test_a_partial_answer_takes_calls_but_no_form() -> None:
    partial = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Let", "partial": True}]
    found = encode_chat(Chat(messages=partial, tools=[tool()], tool_choice="required")).constraint
    assert found is not None
    written = " me see." + end("response") + tools(call("run")) + DONE
    assert accepts(found.value, segments_of(written))
    with pytest.raises(FormatError):
        encode_chat(Chat(messages=partial, response_format={"type": "json_object"}))
