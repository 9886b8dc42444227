"""Response formats and tools over HTTP: what workers are told, what is counted, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parsers.base import Segment
from tests.gateway.api.conftest import MODEL, Gateway, gateway
from tests.gateway.raw_worker import stream, tokens
from tests.parsers.kimi_k3.material import TOKENIZER, argument, call, segments_of, tools, turn

RUN = {
    "type": "function",
    "function": {"name": "run", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
JSON_OBJECT = {"type": "json_object"}


def say(markup: str | list[Segment]) -> Any:
    pieces = segments_of(markup) if isinstance(markup, str) else markup
    return stream(tokens(*TOKENIZER.encode_segments(pieces).ids.tolist()), tokens(finish="stop"))


HELLO = say(turn("", "Hello."))


async def metric(gw: Gateway, line: str) -> bool:
    return line in (await (await gw.get("/metrics")).text()).splitlines()


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": JSON_OBJECT},
        {"tools": [RUN], "tool_choice": "required"},
        {"structured_outputs": {"choice": ["a"]}},
    ],
)
async def test_a_worker_is_told_what_the_answer_must_be(fields: dict[str, Any]) -> None:
    async with gateway([HELLO]) as gw:
        assert (await gw.chat(**fields)).status == 200
        body = gw.workers[0].requests[0][1]
    tag = json.loads(body["sampling_params"]["structured_outputs"]["structural_tag"])
    assert tag["type"] == "structural_tag"
    assert body["reasoning_ended"] is True


async def test_a_usual_chat_is_not_constrained() -> None:
    async with gateway([HELLO]) as gw:
        assert (await gw.chat(tools=[RUN])).status == 200
        body = gw.workers[0].requests[0][1]
    assert "structured_outputs" not in body["sampling_params"]
    assert "reasoning_ended" not in body


async def test_a_completion_is_constrained_as_it_asks() -> None:
    async with gateway([HELLO], endpoint="completions") as gw:
        asked = {"model": MODEL, "prompt": "x", "structured_outputs": {"regex": "a+"}}
        assert (await gw.post("/v1/completions", asked)).status == 200
        path, body = gw.workers[0].requests[0]
    assert path == "/v1/completions"
    assert body["structured_outputs"] == {"regex": "a+"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format.json_schema.schema.not",
        ),
        ("/v1/completions", {"structured_outputs": {"json": {"if": {}}}}, "structured_outputs.json.if"),
        ("/v1/completions", {"structured_outputs": 3}, "structured_outputs"),
    ],
)
async def test_what_no_worker_would_keep_is_refused_with_its_path(
    path: str, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "prompt": "x", **fields}
    async with gateway([]) as gw:
        response = await gw.post(path, body)
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param)


async def test_workers_without_a_grammar_are_asked_in_the_prompt_alone() -> None:
    async with gateway([HELLO], constrained_by="prompt") as gw:
        assert (await gw.chat(response_format=JSON_OBJECT)).status == 200
        assert "structured_outputs" not in gw.workers[0].requests[0][1]["sampling_params"]
        refused = await gw.chat(structured_outputs={"choice": ["a"]})
        assert (refused.status, (await refused.json())["error"]["param"]) == (400, "structured_outputs")


class TestViolations:
    @pytest.mark.parametrize(
        ("markup", "kind"),
        [
            (call("run", argument("n", "x")), "schema"),
            (call("walk"), "undeclared"),
            (call("run", "<|open|>json<|sep|>{<|close|>json<|sep|>"), "not_json"),
        ],
    )
    async def test_a_wrong_call_is_counted_and_reaches_the_client_as_it_is(
        self, markup: str, kind: str
    ) -> None:
        answer = say(turn("", "", tools(markup)))
        async with gateway([answer, answer]) as gw:
            whole = await (await gw.chat(tools=[RUN])).json()
            assert (await gw.chat(tools=[RUN], stream=True)).status == 200
            assert await metric(gw, f'kvgateway_tool_call_violations_total{{kind="{kind}"}} 2.0')
            assert await metric(gw, "kvgateway_tool_calls_total 2.0")
        assert len(whole["choices"][0]["message"]["tool_calls"]) == 1

    async def test_a_right_call_is_not(self) -> None:
        async with gateway([say(turn("", "", tools(call("run", argument("n", "3", "number")))))]) as gw:
            await gw.chat(tools=[RUN])
            assert await metric(gw, "kvgateway_tool_calls_total 1.0")
            assert "violations_total{" not in await (await gw.get("/metrics")).text()

    async def test_a_required_call_that_does_not_come_is_counted(self) -> None:
        async with gateway([HELLO]) as gw:
            body = await (await gw.chat(tools=[RUN], tool_choice="required")).json()
            assert body["choices"][0]["finish_reason"] == "stop"
            assert await metric(gw, "kvgateway_missing_tool_calls_total 1.0")


async def test_the_settings_choose_tool_call_ids_and_what_becomes_of_efforts() -> None:
    answer = say(turn("", "", tools(call("run"))))
    async with gateway([answer, answer], tool_call_ids="name_index", reasoning_efforts="strict") as gw:
        body = await (await gw.chat(tools=[RUN])).json()
        assert body["choices"][0]["message"]["tool_calls"][0]["id"] == "run:0"
        assert (await gw.chat(reasoning_effort="high")).status == 200
        for effort in ("medium", "none", "silly"):
            refused = await gw.chat(reasoning_effort=effort)
            assert (refused.status, (await refused.json())["error"]["param"]) == (400, "reasoning_effort")
