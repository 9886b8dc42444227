"""The engine's own grammar library accepts of each constraint what it should, and nothing else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from gateway.tokens.tokenizer import Tokenizer
from parsers.base import Segment
from parsers.registry import get_format
from tests.parsers.kimi_k3.material import argument, call, end, segments_of, tag, tools
from tests.parsers.kimi_k3.test_constraint import DONE, SCHEMA_FORMAT, STRICT, constraint, said, tool

X, LABEL = argument("x", "1", "number"), argument("label", 'any <|text "x"', "string")
REQUIRED = {"tools": [tool(), tool("walk")], "tool_choice": "required"}
BOTH = {"response_format": SCHEMA_FORMAT, "tools": [tool()]}
UNION = {
    "type": "object",
    "properties": {"v": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "e": {"enum": ["a", 3]}},
    "required": ["v"],
    "additionalProperties": False,
}
QUOTED = [Segment("quoted: <|close|>think<|sep|> ", False), *segments_of(said("{}", thought=""))]
BOUNDED = {"type": "object", "properties": {"v": {"type": "string", "maxLength": 3}}, "required": ["v"]}

# Fields of a request, an answer, and whether the answer is allowed.
ASKED: list[tuple[dict[str, Any], str | list[Segment], bool]] = [
    ({"response_format": SCHEMA_FORMAT}, said('{"x": 1, "label": "a"}'), True),
    ({"response_format": SCHEMA_FORMAT}, said('{"x":1}'), True),
    ({"response_format": SCHEMA_FORMAT}, said('{"label": "a"}'), False),
    ({"response_format": SCHEMA_FORMAT}, said("text"), False),
    ({"response_format": SCHEMA_FORMAT}, said('{"x": 1, "label": "<|open|>"}'), False),
    ({"response_format": {"type": "json_object"}}, QUOTED, True),
    ({"response_format": {"type": "json_object"}}, said("{}").removeprefix("hm" + end("think")), True),
    ({"response_format": {"type": "json_object"}}, said("[]"), False),
    ({"response_format": {"type": "json_object"}, "thinking": False}, "{}" + end("response") + DONE, True),
    ({"structured_outputs": {"regex": "[ab]{2}"}}, said("ab"), True),
    ({"structured_outputs": {"regex": "[ab]{2}"}}, said("abc"), False),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, said("no"), True),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, said("maybe"), False),
    ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, said("y"), True),
    ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, said("z"), False),
    ({"structured_outputs": {"json": BOUNDED}}, said('{"v": "abc"}'), True),
    ({"structured_outputs": {"json": BOUNDED}}, said('{"v": "abcd"}'), False),
    (REQUIRED, said("Let me see.", tools(call("run", argument("any", "1", "number")))), True),
    (REQUIRED, said("", tools(call("run", index=12), call("walk", index=2))), True),
    (REQUIRED, said("No."), False),
    (REQUIRED, said("", tools(call("fly"))), False),
    ({**REQUIRED, "parallel_tool_calls": False}, said("", tools(call("run"), call("walk"))), False),
    ({"tools": [STRICT, tool("walk")]}, said("No call."), True),
    ({"tools": [STRICT, tool("walk")]}, said("", tools(call("run", X, LABEL))), True),
    ({"tools": [STRICT, tool("walk")]}, said("", tools(call("run", X), call("walk"))), True),
    ({"tools": [STRICT, tool("walk")]}, said("", tools(call("run", LABEL))), False),
    ({"tools": [STRICT, tool("walk")]}, said("", tools(call("run", argument("x", "1.5", "number")))), False),
    ({"tools": [tool(parameters=UNION, strict=True)]}, said("", tools(call("run", argument("v", "")))), True),
    (
        {"tools": [tool(parameters=UNION, strict=True)]},
        said("", tools(call("run", argument("v", "null", "null"), argument("e", "3", "number")))),
        True,
    ),
    (
        {"tools": [tool(parameters=UNION, strict=True)]},
        said("", tools(call("run", argument("v", "1", "number")))),
        False,
    ),
    (
        {"tools": [tool(parameters=BOUNDED, strict=True)]},
        said("", tools(call("run", tag("json", type="object") + '{"v": "abc"}' + end("json")))),
        True,
    ),
    (BOTH, said('{"x": 1}'), True),
    (BOTH, said("", tools(call("run"))), True),
    (BOTH, said('{"x": 1}', tools(call("run"))), True),
    (BOTH, said(""), False),
]


def test_the_engines_grammar_agrees(home: Path, shared: Path) -> None:
    vocabulary = shared / "data/kimi_k3_tokenizer"
    tokenizer = Tokenizer.load(get_format("kimi_k3"), vocabulary)
    asked = []
    for fields, markup, _ in ASKED:
        found = constraint(**fields)
        assert found is not None
        segments = segments_of(markup) if isinstance(markup, str) else markup
        asked.append([found.value, tokenizer.encode_segments(segments).ids.tolist()])
    done = subprocess.run(
        [str(home / "venv/bin/python"), str(Path(__file__).with_name("accept.py"))],
        input=json.dumps({"model": str(vocabulary / "tiktoken.model"), "asked": asked}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    got = json.loads(done.stdout)
    wrong = [(fields, markup) for (fields, markup, right), it in zip(ASKED, got, strict=True) if it != right]
    assert wrong == []
