from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.engines.base import EngineRequest
from gateway.engines.constraints import sglang_sampling, vllm_structured_outputs
from gateway.engines.vllm import STREAMED, completions_body, generate_body
from parsers.base import Constraint, ConstraintKind

TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "é"}}


@pytest.mark.parametrize(
    ("kind", "value", "vllm", "sglang"),
    [
        ("json", {"type": "null"}, {"json": {"type": "null"}}, {"json_schema": '{"type":"null"}'}),
        ("json_object", True, {"json_object": True}, {"json_schema": '{"type":"object"}'}),
        ("regex", "a+", {"regex": "a+"}, {"regex": "a+"}),
        ("choice", ["a.b", "c"], {"choice": ["a.b", "c"]}, {"regex": r"(a\.b)|(c)"}),
        ("grammar", "root ::= x", {"grammar": "root ::= x"}, {"ebnf": "root ::= x"}),
    ],
)
def test_each_engine_gets_a_constraint_in_its_own_words(
    kind: ConstraintKind, value: Any, vllm: Any, sglang: Any
) -> None:
    constraint = Constraint(kind, value)
    assert msgspec.json.decode(vllm_structured_outputs(constraint)) == vllm
    assert {name: msgspec.json.decode(raw) for name, raw in sglang_sampling(constraint).items()} == sglang


def test_a_structural_tag_is_text_to_both() -> None:
    constraint = Constraint("structural_tag", TAG)
    vllm = msgspec.json.decode(vllm_structured_outputs(constraint))
    assert msgspec.json.decode(vllm["structural_tag"]) == TAG
    assert msgspec.json.decode(msgspec.json.decode(sglang_sampling(constraint)["structural_tag"])) == TAG


def body_of(pieces: list[bytes]) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(b"".join(pieces))
    return body


def test_generate_gets_it_among_the_sampling_parameters_and_from_the_first_token_on() -> None:
    request = EngineRequest(
        request_id="r",
        model="m",
        token_ids_json=b"1",
        prompt_tokens=1,
        sampling={"max_tokens": b"5"},
        constraint=Constraint("regex", "a"),
    )
    body = body_of(generate_body(request, STREAMED))
    assert body["sampling_params"] == {"max_tokens": 5, "structured_outputs": {"regex": "a"}}
    assert body["reasoning_ended"] is True
    body = body_of(completions_body(request, STREAMED))
    assert body["structured_outputs"] == {"regex": "a"}
    assert "reasoning_ended" not in body
    request.constraint = None
    assert "reasoning_ended" not in body_of(generate_body(request, STREAMED))
