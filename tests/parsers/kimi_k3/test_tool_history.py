from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.base import FormatError
from parsers.kimi_k3.tool_history import Argument, Call, order_results, parse_arguments, type_of


@pytest.mark.parametrize("arguments", [None, "", {}, "{}", " { } and more"])
def test_no_arguments_are_no_elements(arguments: object) -> None:
    assert parse_arguments(arguments, "b") == []


class TestLiteralArguments:
    """Revision b, arguments as a JSON string."""

    @pytest.mark.parametrize(
        ("literal", "kind"),
        [
            ("1e2", "number"),
            ("0.10", "number"),
            ("[1,2]", "array"),
            ('{"b":1,"a":  2}', "object"),
            ("true", "boolean"),
            ("null", "null"),
            ("NaN", "number"),
            ('[ "é" ]', "array"),
        ],
    )
    def test_a_value_keeps_its_spelling(self, literal: str, kind: str) -> None:
        assert parse_arguments(f' {{ "v" :\n{literal} }} ', "b") == [Argument("v", kind, literal)]

    def test_a_string_is_decoded(self) -> None:
        assert parse_arguments(r'{"s": "x\ny\u00e9"}', "b") == [Argument("s", "string", "x\nyé")]

    def test_control_characters_in_strings_are_accepted(self) -> None:
        assert parse_arguments('{"s": "a\nb"}', "b") == [Argument("s", "string", "a\nb")]

    def test_every_value_of_a_repeated_key_is_kept(self) -> None:
        parsed = parse_arguments('{"k": 1, "k": 2}', "b")
        assert parsed == [Argument("k", "number", "1"), Argument("k", "number", "2")]

    @pytest.mark.parametrize(
        "text",
        [
            "  ",
            "{",
            '{"a"',
            '{"a":',
            '{"a": 1',
            '{"a": 1,',
            '{"a": 1,}',
            "{1: 2}",
            "[1]",
            "x",
            '{"a" 1}',
            "{'a': 1}",
            '{"a": ' + "[" * 100_000,
        ],
    )
    def test_what_is_no_object_is_kept_as_text(self, text: str) -> None:
        assert parse_arguments(text, "b") == text


class TestArgumentsWrittenAnew:
    @pytest.mark.parametrize("revision", ["a", "b"])
    def test_a_mapping_is(self, revision: Any) -> None:
        parsed = parse_arguments({"n": 100.0, "l": [1, 2], "o": {"b": 1, "a": "é"}, "s": "x"}, revision)
        assert parsed == [
            Argument("n", "number", "100.0"),
            Argument("l", "array", "[1, 2]"),
            Argument("o", "object", '{"b": 1, "a": "é"}'),
            Argument("s", "string", "x"),
        ]

    def test_revision_a_does_so_with_a_string_too(self) -> None:
        assert parse_arguments('{"n": 1e2, "l": [1,2]}', "a") == parse_arguments(
            {"n": 100.0, "l": [1, 2]}, "a"
        )

    def test_revision_a_takes_space_for_none(self) -> None:
        assert parse_arguments("  ", "a") == []

    @pytest.mark.parametrize("text", ["{oops", "[1]", "1", "{" * 100_000, '{"a":' * 100_000])
    def test_revision_a_keeps_what_is_no_object(self, text: str) -> None:
        assert parse_arguments(text, "a") == text

    @pytest.mark.parametrize("revision", ["a", "b"])
    def test_any_other_type_becomes_its_json(self, revision: Any) -> None:
        assert parse_arguments([1, {"a": None}], revision) == '[1, {"a": null}]'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.text(), JSON))
def test_a_string_and_a_mapping_agree_on_keys_types_and_strings(arguments: dict[str, Any]) -> None:
    literal = parse_arguments(json.dumps(arguments), "b")
    assert isinstance(literal, list)
    assert [(each.key, each.type) for each in literal] == [
        (key, type_of(value)) for key, value in arguments.items()
    ]
    for each in literal:
        expected = arguments[each.key]
        if isinstance(expected, str):
            assert each.text == expected
        else:
            assert each.text == json.dumps(expected)


class TestResults:
    CALLS = (Call("a", "f"), Call("b", "g"), Call(None, "h"))

    def order(
        self, *run: dict[str, Any], calls: tuple[Call, ...] = CALLS, seen: int = 0
    ) -> list[tuple[int, str]]:
        numbered = [(place, {"role": "tool", **message}) for place, message in enumerate(run, 5)]
        return [(place, name) for place, _, name in order_results(numbered, calls, seen)]

    def test_a_run_that_is_all_known_follows_the_calls(self) -> None:
        assert self.order({"tool_call_id": "b"}, {"id": "a"}) == [(6, "f"), (5, "g")]

    @pytest.mark.parametrize("nothing", [None, ""])
    def test_an_empty_member_is_none(self, nothing: str | None) -> None:
        assert self.order({"tool_call_id": nothing, "id": "b"}, {"id": "a"}) == [(6, "f"), (5, "g")]
        assert self.order({"tool": nothing, "name": "k"}) == [(5, "k")]

    def test_two_results_of_one_call_keep_their_order(self) -> None:
        assert self.order({"tool_call_id": "a"}, {"tool_call_id": "a"}) == [(5, "f"), (6, "f")]

    def test_one_unknown_result_leaves_the_run_as_it_is(self) -> None:
        run = {"tool_call_id": "z", "name": "k"}, {"tool_call_id": "b"}, {"tool_call_id": "a"}
        assert self.order(*run) == [(5, "k"), (6, "g"), (7, "f")]

    def test_name_and_position_is_an_id_too(self) -> None:
        assert self.order({"tool_call_id": "h:2"}, {"tool_call_id": "f:0"}) == [(6, "f"), (5, "h")]

    def test_a_real_id_goes_before_one_of_that_form(self) -> None:
        calls = (Call("g:1", "f"), Call("x", "g"))
        assert self.order({"tool_call_id": "g:1"}, calls=calls) == [(5, "f")]

    def test_the_calls_name_goes_before_the_results_own(self) -> None:
        assert self.order({"tool_call_id": "a", "name": "stale", "tool": "older"}) == [(5, "f")]

    def test_without_an_id_the_place_names_it(self) -> None:
        assert self.order({}, {"name": "own"}, {}) == [(5, "f"), (6, "own"), (7, "h")]
        assert self.order({}, seen=2) == [(5, "h")]

    def test_an_orphan_is_refused(self) -> None:
        with pytest.raises(FormatError) as refusal:
            self.order({}, calls=())
        assert refusal.value.param == "messages[5].tool_call_id"
