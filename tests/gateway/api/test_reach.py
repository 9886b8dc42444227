"""Each cell of the table of fields and worker endpoints, against what a worker is really sent."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams

from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, STEERING, Field
from gateway.api.reach import ELSEWHERE, GATEWAY, GRAMMAR, IDS, NO_EFFECT, REFUSED, reach
from tests.gateway.api.conftest import MODEL, gateway
from tests.gateway.raw_worker import status, stream, tokens

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

EXAMPLES: dict[str, bytes] = {
    "temperature": b"0.10",
    "top_p": b"9e-1",
    "top_k": b"40",
    "min_p": b"0.1",
    "presence_penalty": b"0.30",
    "frequency_penalty": b"-0.3",
    "repetition_penalty": b"1.1",
    "seed": b"9007199254740993",
    "min_tokens": b"1",
    "stop_token_ids": b"[7]",
    "ignore_eos": b"true",
    "logit_bias": b'{"5": 1.50}',
    "allowed_token_ids": b"[5, 6]",
    "bad_words": b'["x"]',
    "vllm_xargs": b'{"k": 0.10}',
    "thinking_token_budget": b"10",
    "repetition_detection": b'{"max_pattern_size": 3}',
    "watermarking": b"true",
    "stream": b"false",
    "stream_options": b'{"include_usage": true}',
    "max_tokens": b"7",
    "max_completion_tokens": b"7",
    "n": b"2",
    "stop": b'["zzz"]',
    "include_stop_str_in_output": b"true",
    "structured_outputs": b'{"regex": "a+"}',
    "response_format": msgspec.json.encode(SCHEMA),
    "tools": msgspec.json.encode([TOOL]),
    "tool_choice": b'"none"',
    "parallel_tool_calls": b"false",
    "reasoning_effort": b'"low"',
    "thinking": b'{"type": "disabled"}',
    "chat_template_kwargs": b'{"thinking": false}',
    "add_generation_prompt": b"false",
    "cache_salt": b'"salt"',
    "priority": b"-3",
    "user": b'"u"',
    "metadata": b'{"a": "b"}',
    "store": b"true",
    "service_tier": b'"flex"',
    "safety_identifier": b'"s"',
    "prompt_cache_key": b'"k"',
    "prompt_cache_options": b"{}",
    "prompt_cache_retention": b'"24h"',
    "moderation": b"{}",
    "prediction": b"{}",
    "verbosity": b'"low"',
    "length_penalty": b"1.0",
    "truncation_side": b'"left"',
    "add_special_tokens": b"true",
    "stream_interval": b"2",
    "include_reasoning": b"false",
    "echo": b"true",
} | dict.fromkeys(STEERING, b'"steered"')

SURFACES: dict[str, tuple[dict[str, Field], bytes]] = {
    "/v1/chat/completions": (
        CHAT_FIELDS,
        b'"model":"%b","messages":[{"role":"user","content":"Hi"}]' % MODEL.encode(),
    ),
    "/v1/completions": (COMPLETION_FIELDS, b'"model":"%b","prompt":[1,2,3]' % MODEL.encode()),
}
INPUTS = {"model", "messages", "prompt"}

Cell = tuple[str, str, str]


def cells(endpoint: str) -> list[Cell]:
    return [
        (path, name, endpoint)
        for path, (table, _) in SURFACES.items()
        for name in sorted(table)
        if name not in INPUTS
    ]


def sglang_tokens(token_id: int, *, index: int, finish: str) -> dict[str, Any]:
    meta = {"id": "x", "finish_reason": {"type": finish}, "prompt_tokens": 3, "completion_tokens": 1}
    return {"index": index, "output_ids": [token_id], "meta_info": meta}


def example(name: str, table: dict[str, Field]) -> bytes:
    if name == "logprobs" and table is CHAT_FIELDS:
        return b"true"
    return EXAMPLES.get(name, b"2")


def spelled(raw: bytes, place: str) -> bytes:
    """The JSON text at a path of a body, as it was spelled."""
    value = raw
    for key in place.split("."):
        value = bytes(msgspec.json.decode(value, type=dict[str, msgspec.Raw])[key])
    return value


def mentions(body: Any, name: str) -> bool:
    """Some object in it has that key."""
    if isinstance(body, dict):
        return name in body or any(mentions(each, name) for each in body.values())
    return isinstance(body, list) and any(mentions(each, name) for each in body)


SET_BY_THE_GATEWAY = {
    "request_id",
    "stream",
    "stream_options",
    "token_ids",
    "return_token_ids",
    "skip_special_tokens",
    "reasoning_ended",
    "sampling_params",
    "rid",
    "input_ids",
    "max_tokens",
    "stop_token_ids",
    "structured_outputs",
}
"""Names that a worker's body has anyway, with the gateway's own value."""


@pytest.mark.parametrize(
    ("path", "name", "endpoint"), cells("generate") + cells("completions") + cells("sglang")
)
async def test_a_worker_of_ids_is_sent_what_the_table_says(path: str, name: str, endpoint: str) -> None:
    table, base = SURFACES[path]
    value = example(name, table)
    extra = b',"stream":true' if name == "stream_options" else b""
    extra += b',"tools":' + EXAMPLES["tools"] if name in ("tool_choice", "parallel_tool_calls") else b""
    extra += b',"logprobs":true' if name == "top_logprobs" and table is CHAT_FIELDS else b""
    extra += b',"stop":["zzz"]' if name == "include_stop_str_in_output" else b""
    request = b'{%b,"%b":%b%b}' % (base, name.encode(), value, extra)
    said = reach(name, table[name], endpoint)
    say = sglang_tokens if endpoint == "sglang" else tokens
    answer = stream(*[say(5, index=index, finish="stop") for index in range(2 if name == "n" else 1)])
    async with gateway([answer], [answer], endpoint=endpoint) as gw:
        response = await gw.post(path, data=request, headers={"Content-Type": "application/json"})
        text = await response.text()
        raws = [raw for worker in gw.workers for raw in worker.raw]
    if said in (REFUSED, ELSEWHERE):
        assert response.status == 400, text
        assert msgspec.json.decode(text)["error"]["param"] == name
        assert not raws
        return
    assert response.status == 200, text
    (raw,) = raws
    sent = msgspec.json.decode(raw)
    if said in (GATEWAY, IDS, GRAMMAR, f"{IDS}, {GRAMMAR}", NO_EFFECT, "dropped"):
        assert name in SET_BY_THE_GATEWAY or not mentions(sent, name)
        assert b"steered" not in raw
    else:
        given = spelled(raw, said)
        if name == "stop_token_ids" and path == "/v1/chat/completions":
            assert given.startswith(b"[7")  # the format's own ends come after it
        elif (name, endpoint) == ("priority", "sglang"):
            assert given == b"3"  # where more is higher
        elif value == b"true" and name == "logprobs":
            assert given == b"0"  # of the token itself, and no others
        else:
            assert given == value


@pytest.mark.parametrize(("path", "name", "endpoint"), cells("openai"))
async def test_a_worker_of_whole_requests_is_sent_all_that_does_not_steer(
    path: str, name: str, endpoint: str
) -> None:
    table, base = SURFACES[path]
    value = example(name, table)
    request = b'{%b,"%b":%b}' % (base, name.encode(), value)
    async with gateway([status(200, b"{}")], endpoint=endpoint) as gw:
        response = await gw.post(path, data=request, headers={"Content-Type": "application/json"})
        assert response.status == 200, await response.text()
        (raw,) = gw.workers[0].raw
    if reach(name, table[name], endpoint) == "dropped":
        assert not mentions(msgspec.json.decode(raw), name)
    else:
        assert spelled(raw, name) == value


@pytest.mark.parametrize(
    "name", [name for name, field in CHAT_FIELDS.items() if reach(name, field, "sglang") == ELSEWHERE]
)
async def test_a_worker_that_lacks_a_parameter_is_passed_over_and_alone_makes_it_a_400(name: str) -> None:
    request = b'{%b,"%b":%b}' % (SURFACES["/v1/completions"][1], name.encode(), EXAMPLES[name])
    headers = {"Content-Type": "application/json"}
    answers = [stream(tokens(5, finish="stop")) for _ in range(2)]
    async with gateway([], answers) as gw:
        await gw.set_endpoint("w0", "sglang")
        for _ in answers:
            response = await gw.post("/v1/completions", data=request, headers=headers)
            assert response.status == 200, await response.text()
        await gw.set_endpoint("w1", "sglang")
        refused = await gw.post("/v1/completions", data=request, headers=headers)
        error = (await refused.json())["error"]
    assert (refused.status, error["param"], error["code"]) == (400, name, "unsupported_parameter")


def test_the_table_knows_every_field_of_the_openai_sdk() -> None:
    assert get_type_hints(ChatParams).keys() <= CHAT_FIELDS.keys()
    assert get_type_hints(CompletionParams).keys() <= COMPLETION_FIELDS.keys()
