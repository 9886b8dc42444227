"""Sorting and checking a request body, field by field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, STEERING, UNSUPPORTED, read_fields
from gateway.serving.errors import RequestError


def read(**fields: Any) -> Any:
    return read_fields(msgspec.json.encode(fields), CHAT_FIELDS)


def refusal(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_fields(body, CHAT_FIELDS)
    return caught.value


def test_a_number_reaches_the_worker_as_it_was_spelled() -> None:
    fields = read_fields(b'{"temperature": 0.10, "top_p":1e-1,"seed":12345678901234567}', CHAT_FIELDS)
    assert fields.sampling == {"temperature": b"0.10", "top_p": b"1e-1", "seed": b"12345678901234567"}


def test_an_unknown_field_passes_to_the_worker_as_it_is() -> None:
    assert read_fields(b'{"new_knob": [1, 2.50]}', CHAT_FIELDS).top_level == {"new_knob": b"[1, 2.50]"}


def test_null_counts_as_absent() -> None:
    fields = read(temperature=None, n=None, new_knob=None)
    assert (fields.values, fields.sampling, fields.top_level) == ({}, {}, {})


FAMILIES = ("bootstrap_host", "bootstrap_room", "session_id", "session_params", "disagg_prefill_dp_rank")


@pytest.mark.parametrize("name", [*STEERING, *FAMILIES])
def test_a_field_that_would_steer_an_engine_goes_nowhere(name: str) -> None:
    for table in (CHAT_FIELDS, COMPLETION_FIELDS):
        fields = read_fields(msgspec.json.encode({name: {"do_remote_decode": True}}), table)
        assert (fields.values, fields.sampling, fields.top_level) == ({}, {}, {})


def test_the_other_endpoints_input_goes_nowhere() -> None:
    assert read(prompt="x").top_level == {}
    fields = read_fields(b'{"messages":[],"tools":[]}', COMPLETION_FIELDS)
    assert (fields.values, fields.top_level) == ({}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-5]),
        ("bad_words", [""]),
        ("bad_words", ["x"] * 129),
        ("vllm_xargs", {"a": {}}),
        ("vllm_xargs", {"a": True}),
        ("vllm_xargs", {"kv_transfer_params": "kills an engine"}),
        ("thinking_token_budget", -2),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"٣": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("cache_salt", "a/b"),
        ("cache_salt", "a@b"),
        ("cache_salt", "a\0b"),
        ("verbosity", "loud"),
        ("store", 1),
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("max_tokens", "10"),
        ("max_completion_tokens", -1),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 129),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [""]),
        ("stop", "a" * 4097),
        ("stop", ""),
        ("stop", 3),
        ("stop_token_ids", ["x"]),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", [1]),
        ("stream", "yes"),
        ("stream_options", True),
        ("model", ""),
        ("model", 5),
        ("messages", {}),
        ("messages", ["hi"]),
        ("tools", {}),
        ("vllm_xargs", []),
        ("cache_salt", ""),
        ("cache_salt", "x" * 129),
        ("priority", 0.5),
        ("user", 5),
    ],
)
def test_a_wrong_value_is_a_400_that_names_its_field(name: str, value: Any) -> None:
    error = refusal(msgspec.json.encode({name: value}))
    assert (error.status, error.param) == (400, name)
    assert f"`{name}`" in error.message


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_field_that_cannot_be_honoured_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    asks = b"false" if name == "include_reasoning" else b"2"
    error = read_fields(b'{"%b":%b}' % (name.encode(), asks), CHAT_FIELDS).refusal
    assert error is not None
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    nothing = b"true" if name == "include_reasoning" else b"false"
    fields = read_fields(b'{"%b":%b}' % (name.encode(), nothing), CHAT_FIELDS)
    assert (fields.refusal, fields.top_level) == (None, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", 1), ("modalities", ["text"]), ("function_call", "none"), ("truncate_prompt_tokens", -1)],
)
def test_a_value_that_says_what_happens_anyway_is_taken(name: str, value: Any) -> None:
    assert read(**{name: value}).refusal is None


def test_strict_refuses_what_it_does_not_know_and_nothing_else() -> None:
    with pytest.raises(RequestError) as caught:
        read_fields(b'{"temperature":1,"knob":null,"nob":1}', CHAT_FIELDS, strict=True)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "nob", "unknown_parameter")
    known = dict.fromkeys(CHAT_FIELDS) | {"knob": None, "rid": "x", "session_id": "y"}
    assert read_fields(msgspec.json.encode(known), CHAT_FIELDS, strict=True).top_level == {}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


SCHEMA = {"name": "x", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("tools", [], "tools"),
        ("tools", ["f"], "tools[0]"),
        ("tools", [{"function": {"name": "f"}}], "tools[0].type"),
        ("tools", [{"type": "custom", "function": {"name": "f"}}], "tools[0].type"),
        ("tools", [{"type": "function"}], "tools[0].function"),
        ("tools", [{"type": "function", "function": "f"}], "tools[0].function"),
        ("tools", [{"type": "function", "function": {}}], "tools[0].function.name"),
        ("tools", [function(), function(name=3)], "tools[1].function.name"),
        ("tools", [function(name="")], "tools[0].function.name"),
        ("tools", [function(name="a@b")], "tools[0].function.name"),
        ("tools", [function(name="a" * 257)], "tools[0].function.name"),
        ("tools", [function(), function()], "tools[1].function.name"),
        ("tools", [function(parameters=[])], "tools[0].function.parameters"),
        ("tools", [function(strict="yes")], "tools[0].function.strict"),
        ("tools", [function(description=3)], "tools[0].function.description"),
        ("tool_choice", "bogus", "tool_choice"),
        ("tool_choice", 3, "tool_choice"),
        ("tool_choice", [], "tool_choice"),
        ("tool_choice", {"type": "allowed_tools"}, "tool_choice.type"),
        ("tool_choice", {"type": "function"}, "tool_choice.function"),
        ("tool_choice", {"type": "function", "function": {}}, "tool_choice.function.name"),
        ("response_format", "json", "response_format"),
        ("response_format", {}, "response_format.type"),
        ("response_format", {"type": "yaml"}, "response_format.type"),
        ("response_format", {"type": ["json_object"]}, "response_format.type"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
        ("response_format", {"type": "json_schema", "json_schema": 1}, "response_format.json_schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"schema": {}}},
            "response_format.json_schema.name",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": SCHEMA | {"name": ""}},
            "response_format.json_schema.name",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "response_format.json_schema.schema",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": SCHEMA | {"schema": "x"}},
            "response_format.json_schema.schema",
        ),
        (
            "response_format",
            {"type": "json_schema", "json_schema": SCHEMA | {"strict": "yes"}},
            "response_format.json_schema.strict",
        ),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
        ("metadata", {"a": 1}, "metadata"),
        ("metadata", {str(i): "" for i in range(17)}, "metadata"),
        ("metadata", {"a": "x" * 513}, "metadata"),
    ],
)
def test_a_wrong_member_is_a_400_that_names_its_place(name: str, value: Any, param: str) -> None:
    error = refusal(msgspec.json.encode({name: value}))
    assert (error.status, error.param, error.code) == (400, param, "invalid_value")
    assert error.message.startswith(f"`{param}`")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [function(parameters=None, strict=None), function(name="a.b-c:d/e_9")]),
        ("tool_choice", "auto"),
        ("tool_choice", function()),
        ("response_format", {"type": "text"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": SCHEMA | {"strict": None}}),
        ("stream_options", {"include_usage": None, "include_obfuscation": False}),
        ("thinking", True),
        ("thinking", {"type": "enabled"}),
    ],
)
def test_a_right_object_is_taken(name: str, value: Any) -> None:
    assert read(**{name: value}).values[name] == value


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b'{"a":1,}', b"\xff", b'{"a":1} x'])
def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    error = refusal(body)
    assert (error.status, error.code) == (400, "invalid_json")


def test_deep_nesting_is_a_400() -> None:
    depth = 100_000
    error = refusal(b'{"messages":' + b"[" * depth + b"]" * depth + b"}")
    assert error.status == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(body=st.dictionaries(st.sampled_from(sorted(CHAT_FIELDS)), json_values, max_size=6))
def test_any_values_are_taken_or_refused_by_name(body: dict[str, Any]) -> None:
    refused: RequestError | None = None
    try:
        read_fields(msgspec.json.encode(body), CHAT_FIELDS)
    except RequestError as error:
        refused = error
    assert refused is None or (
        refused.status == 400 and str(refused.param).split(".")[0].split("[")[0] in body
    )
