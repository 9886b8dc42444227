"""A real engine keeps to what the gateway hands it. Its weights are random: only a grammar says this."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parsers.json_schema.validator import first_violation
from tests.live.asker import Answer, user
from tests.live.k3.rig import Front, K3Rig
from tests.live.vocabulary import CONTROL

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["a", "b"]},
        "ok": {"type": "boolean"},
    },
    "required": ["x", "kind"],
    "additionalProperties": False,
}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
# Random weights would go on for ever where text is free: what ends a text is made likely.
ENDS_SOON = {str(CONTROL["<|close|>"]): 100}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": POINT, **fields}}


def ask(front: Front, streamed: bool, thinking: bool = False, **fields: Any) -> Answer:
    return front.ask(
        [user("Hi")], streamed=streamed, thinking=thinking, temperature=1, max_tokens=300, **fields
    )


def called(answer: Answer) -> list[str]:
    for call in answer.calls:
        assert first_violation(POINT, json.loads(call["arguments"])) is None, call
    return [call["name"] for call in answer.calls]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
class TestConstrained:
    def test_a_schema_is_kept(self, k3: K3Rig, streamed: bool) -> None:
        for _ in range(3):
            answer = ask(k3.constrained, streamed, response_format=SCHEMA_FORMAT)
            assert first_violation(POINT, json.loads(answer.content)) is None, answer
            assert answer.finish == "stop"

    @pytest.mark.parametrize("thinking", [False, True], ids=["answering", "thinking"])
    def test_a_required_strict_tool_is_called_by_its_schema(
        self, k3: K3Rig, streamed: bool, thinking: bool
    ) -> None:
        answer = ask(
            k3.constrained,
            streamed,
            thinking,
            tools=[tool("run", strict=True), tool("walk", strict=True)],
            tool_choice="required",
            parallel_tool_calls=False,
            logit_bias=ENDS_SOON,
        )
        assert len(called(answer)) == 1
        assert answer.finish == "tool_calls"

    def test_a_named_tool_is_the_one_that_is_called(self, k3: K3Rig, streamed: bool) -> None:
        for name in ("run", "walk"):
            choice = {"type": "function", "function": {"name": name}}
            tools = [tool("run", strict=True), tool("walk", strict=True)]
            answer = ask(k3.constrained, streamed, tools=tools, tool_choice=choice, logit_bias=ENDS_SOON)
            assert called(answer) == [name]

    def test_structured_outputs_are_about_the_response(self, k3: K3Rig, streamed: bool) -> None:
        for asked, allowed in (
            ({"choice": ["yes", "no"]}, {"yes", "no"}),
            ({"regex": "(ab|cd)"}, {"ab", "cd"}),
            ({"grammar": 'root ::= "x" | "y"'}, {"x", "y"}),
        ):
            answer = ask(k3.constrained, streamed, **extra(structured_outputs=asked))
            assert answer.content in allowed
            assert answer.finish == "stop"

    def test_thinking_stays_free(self, k3: K3Rig, streamed: bool) -> None:
        answer = ask(k3.constrained, streamed, thinking=True, response_format=SCHEMA_FORMAT)
        assert answer.reasoning
        assert not answer.reasoning.lstrip().startswith("{")

    def test_the_prompt_alone_binds_nothing(self, k3: K3Rig, streamed: bool) -> None:
        answer = ask(k3.free, streamed, response_format=SCHEMA_FORMAT)
        with pytest.raises(json.JSONDecodeError):
            json.loads(answer.content)


def extra(**fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}, **fields}
    return {"extra_body": body}


def test_a_completion_is_kept_to_its_constraint_too(k3: K3Rig) -> None:
    completion = k3.constrained.client.completions.create(
        model="moonshotai/Kimi-K3",
        prompt="Hi",
        max_tokens=50,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    )
    assert completion.choices[0].text in ("yes", "no")
