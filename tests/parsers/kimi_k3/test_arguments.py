"""Tool calls: typed arguments to JSON as they are generated, and what becomes of broken calls."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from parsers.answer import Answer
from parsers.base import Finish, OutputEvent, ToolArgumentsDelta, ToolCallStart
from tests.parsers.kimi_k3.material import (
    END,
    GROUPS,
    TOKENIZER,
    TOOLS,
    answer_of,
    argument,
    call,
    end,
    events_of,
    grouped,
    ids_of,
    parser,
    plain,
    read,
    tag,
    tools,
    turn,
)


def calls_of(*calls: str, **options: object) -> list[tuple[str, str]]:
    return plain(read(turn("t", "", tools(*calls)), **options))[2]


def arguments_of(*elements: str) -> str:
    [(_, arguments)] = calls_of(call("run", *elements))
    return arguments


def test_a_call_has_its_name_and_typed_arguments() -> None:
    elements = argument("city", "Paris"), argument("days", "3", "number")
    answer = read(turn("t", "Checking.", tools(call("get_weather", *elements))))
    assert plain(answer) == (
        "t",
        "Checking.",
        [("get_weather", '{"city": "Paris", "days": 3}')],
        "tool_calls",
    )


def test_calls_are_numbered_from_0_whatever_their_index_says() -> None:
    markup = turn("t", "", tools(call("run", index=7), call("list", index=9)))
    starts = [event for event in events_of([ids_of(markup)]) if isinstance(event, ToolCallStart)]
    assert [(start.index, start.name) for start in starts] == [(0, "run"), (1, "list")]


def test_a_call_without_arguments_is_an_empty_object() -> None:
    assert calls_of(call("now")) == [("now", "{}")]


def test_an_undeclared_tool_is_passed_on() -> None:
    assert calls_of(call("unheard_of")) == [("unheard_of", "{}")]


def test_the_order_of_attributes_does_not_matter() -> None:
    element = tag("argument", type="number", key="n") + "1" + end("argument")
    assert calls_of(tag("call", index="1", tool="run") + element + end("call")) == [("run", '{"n": 1}')]


def test_attributes_are_unescaped_and_values_are_not() -> None:
    assert calls_of(call("a&amp;&quot;<b>", argument("k&amp;quot;", "v&amp;"))) == [
        ('a&"<b>', '{"k&quot;": "v&amp;"}')
    ]


def test_space_between_elements_is_ignored() -> None:
    spaced = f"\n {tag('call', tool='run')}\n  {argument('a', 'b')}\n {end('call')}\n"
    assert calls_of(spaced) == [("run", '{"a": "b"}')]


class TestValues:
    @pytest.mark.parametrize(
        "text",
        ["", "12", "  lead and trail \n", '日本🙂"\\\n終', "line1\r\nline2\t\x00end", "é\u2028", "null"],
    )
    def test_a_string_is_kept_exactly(self, text: str) -> None:
        assert json.loads(arguments_of(argument("s", text))) == {"s": text}

    @pytest.mark.parametrize("kind", [None, "unknown", "integer"])
    def test_a_missing_or_unknown_type_is_a_string(self, kind: str | None) -> None:
        assert arguments_of(argument("s", "1", kind)) == '{"s": "1"}'

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("number", "12345678901234567890123"),
            ("number", "0.10"),
            ("number", "1e2"),
            ("number", "-0"),
            ("boolean", "true"),
            ("null", "null"),
            ("array", "[8,20]"),
            ("object", '{"b":1,"a":  2}'),
            ("object", '{"a":1,"a":2}'),
        ],
    )
    def test_json_keeps_its_spelling(self, kind: str, text: str) -> None:
        assert arguments_of(argument("v", text, kind)) == f'{{"v": {text}}}'

    def test_space_around_json_is_dropped(self) -> None:
        assert arguments_of(argument("v", " 7\n", "number")) == '{"v": 7}'

    @pytest.mark.parametrize(
        "text",
        ["12abc", "NaN", "Infinity", "-Infinity", "[1, NaN]", "True", "", "{'a': 1}", "01", "[" * 9_999],
    )
    def test_what_is_no_json_is_a_string(self, text: str) -> None:
        assert json.loads(arguments_of(argument("v", text, "number"))) == {"v": text}

    def test_an_argument_without_a_key_is_left_out(self) -> None:
        keyless = tag("argument", type="string") + "x" + end("argument")
        assert arguments_of(keyless, argument("a", "b")) == '{"a": "b"}'

    def test_the_last_of_two_values_of_a_key_wins(self) -> None:
        text = arguments_of(argument("n", "1", "number"), argument("n", "2", "number"))
        assert json.loads(text) == {"n": 2}


class TestJsonElement:
    def element(self, text: str) -> str:
        return tag("json", type="object") + text + end("json")

    @pytest.mark.parametrize("text", ['{"a":  1e2}', "{bad json", "[1]"])
    def test_its_text_is_passed_on_as_it_is(self, text: str) -> None:
        assert arguments_of(self.element(text)) == text

    def test_an_empty_one_is_an_empty_object(self) -> None:
        assert arguments_of(self.element("")) == "{}"

    def test_only_the_first_kind_of_a_call_counts(self) -> None:
        assert arguments_of(self.element('{"a": 1}'), argument("b", "2")) == '{"a": 1}'
        assert arguments_of(argument("b", "2"), self.element('{"a": 1}')) == '{"b": "2"}'


class TestStreaming:
    def deltas(self, *elements: str) -> list[str]:
        ids = ids_of(turn("t", "", tools(call("run", *elements))))
        events = events_of(grouped(ids, 1))
        return [event.text for event in events if isinstance(event, ToolArgumentsDelta)]

    def test_a_string_comes_as_it_is_generated(self) -> None:
        deltas = self.deltas(argument("code", "one two three"))
        assert deltas == ['{"code": "one', " two", " three", '"}']

    def test_other_values_come_when_complete(self) -> None:
        deltas = self.deltas(argument("a", "[1, 2, 3]", "array"), argument("b", "x"))
        assert deltas == ['{"a": [1, 2, 3], "b": "x', '"}']

    def test_a_call_starts_before_its_first_value(self) -> None:
        markup = end("think") + tools(tag("call", tool="run") + tag("argument", key="code"))
        [start, *_] = events_of(grouped(ids_of(markup), 1))
        assert isinstance(start, ToolCallStart)

    def test_the_time_of_a_long_value_grows_with_its_length_only(self) -> None:
        def seconds(words: int, kind: str) -> float:
            value = argument("code", '"' + "word " * words + '"', kind)
            ids = ids_of(end("think") + tools(call("run", value)))
            best = float("inf")
            for _ in range(3):
                reader, start = parser(), time.process_time()
                for token in ids:
                    reader.feed([token])
                best = min(best, time.process_time() - start)
            return best

        for kind in ("string", "object"):
            # Eight times the length would be 64 times the time, were it quadratic.
            assert seconds(24_000, kind) < 24 * max(seconds(3_000, kind), 0.001)


class TestBrokenCalls:
    GOOD = call("list", argument("path", "/"), index=2)

    def read(self, *parts: str, **options: object) -> Answer:
        return read("t" + end("think") + "".join(parts), **options)

    def test_a_call_without_a_name_is_dropped(self) -> None:
        nameless = tag("call", index="1") + argument("a", "b") + end("call")
        assert calls_of(nameless, self.GOOD) == [("list", '{"path": "/"}')]

    def test_a_call_that_begins_anew_leaves_no_trace(self) -> None:
        assert calls_of(tag("call", tool="run"), self.GOOD) == [("list", '{"path": "/"}')]

    def test_a_call_with_complete_arguments_needs_no_end(self) -> None:
        unclosed = tag("call", tool="run") + argument("a", "b")
        expected = [("run", '{"a": "b"}'), ("list", '{"path": "/"}')]
        assert calls_of(unclosed, self.GOOD) == expected
        assert calls_of(self.GOOD, unclosed) == expected[::-1]

    @pytest.mark.parametrize("after", [end("tools") + END, END, "<|end_of_msg|>", tag("response") + "x"])
    def test_a_channels_end_ends_its_call(self, after: str) -> None:
        answer = self.read(tag("tools"), tag("call", tool="run"), argument("a", "b"), after)
        assert plain(answer)[2:] == ([("run", '{"a": "b"}')], "tool_calls")

    def test_a_call_cut_between_arguments_is_complete(self) -> None:
        cut = tag("tools") + tag("call", tool="run") + argument("a", "b")
        assert plain(self.read(cut, "<|close|>ca", finish="length"))[2:] == (
            [("run", '{"a": "b"}')],
            "length",
        )

    def test_a_call_cut_before_its_arguments_is_none(self) -> None:
        assert self.read(tag("tools"), tag("call", tool="run"), finish="length").tool_calls == []

    def test_a_call_cut_inside_a_value_is_not_in_a_whole_answer(self) -> None:
        cut = tag("call", tool="run") + tag("argument", key="path") + "/usr/lo"
        answer = self.read(tag("tools"), self.GOOD, cut, finish="length")
        assert plain(answer)[2:] == ([("list", '{"path": "/"}')], "length")

    def test_a_stream_has_the_beginning_of_a_cut_value(self) -> None:
        markup = end("think") + tag("tools") + tag("call", tool="run") + tag("argument", key="path") + "/usr"
        reader = parser()
        events: list[OutputEvent] = [*reader.feed(ids_of(markup)), *reader.finish("length")]
        assert events[1:] == [ToolArgumentsDelta(0, '{"path": "/usr'), Finish("length")]
        assert list(reader.incomplete_calls) == [0]

    @pytest.mark.parametrize("after", [END, "<|end_of_msg|>"])
    def test_a_message_that_ends_inside_a_value_leaves_its_call_out(self, after: str) -> None:
        cut = tag("call", tool="run") + tag("argument", key="path") + "/usr/lo"
        answer = self.read(tag("tools"), cut, after)
        assert plain(answer)[2:] == ([], "stop")

    def test_a_call_inside_a_value_begins_anew(self) -> None:
        cut = tag("call", tool="run") + tag("argument", key="path") + "/usr/lo"
        assert calls_of(cut, self.GOOD) == [("list", '{"path": "/"}')]

    def test_a_value_ends_with_its_call_or_the_next_argument(self) -> None:
        first = tag("argument", key="a") + "b"
        assert arguments_of(first) == '{"a": "b"}'
        assert arguments_of(first, argument("c", "d")) == '{"a": "b", "c": "d"}'

    def test_a_call_needs_no_tools_channel(self) -> None:
        answer = self.read(tag("response"), "see", call("run"), end("response"), END)
        assert plain(answer)[1:] == ("see", [("run", "{}")], "tool_calls")
        assert len(self.read(call("run"), END).tool_calls) == 1

    def test_a_second_tools_channel_continues_the_first(self) -> None:
        answer = self.read(tools(call("run")), tools(self.GOOD), END)
        assert [each.name for each in answer.tool_calls] == ["run", "list"]


class TestMarkupInValues:
    """A value may spell any marker; only control ids are structure."""

    @pytest.mark.parametrize(
        "value",
        [
            'x = "<|close|>argument<|sep|>"',
            "<|close|>call<|sep|> <|close|>tools<|sep|>",
            '<|open|>call tool="x" index="1"<|sep|>',
            "<|end_of_msg|>",
        ],
    )
    @pytest.mark.parametrize("kind", ["string", "object"])
    def test_in_ordinary_tokens_it_is_part_of_the_value(self, value: str, kind: str) -> None:
        markup = turn("t", "", tools(call("run", argument("v", "@@", kind))))
        before, after = markup.split("@@")
        ids = [*ids_of(before), *TOKENIZER.encode_text(value).tolist(), *ids_of(after)]
        for size in (1, 4, len(ids)):
            [made] = answer_of(grouped(ids, size)).tool_calls
            assert json.loads(made.arguments) == {"v": value}

    @pytest.mark.parametrize(
        "value",
        [
            "see <|close|>argument in docs",
            'x = "<|open|>call tool=" # not a call',
            "a <|sep|> b",
            "<|open|>think<|sep|>x<|close|>think<|sep|>",
            "<|close|>response<|sep|>",
            "<|open|>div class=\"a\"<|sep|>",
        ],
    )  # fmt: skip
    def test_markers_that_end_nothing_are_part_of_the_value(self, value: str) -> None:
        assert json.loads(arguments_of(argument("v", value))) == {"v": value}


class TestWhichCallsCount:
    MARKUP = turn("t", "c", tools(call("run", argument("a", "b")), call("list", index=2)))

    @pytest.mark.parametrize("options", [{"tool_choice": "none"}, {"tools": None}, {"tools": []}])
    def test_without_tools_to_call_the_channel_is_hidden(self, options: dict[str, object]) -> None:
        assert plain(read(self.MARKUP, **options)) == ("t", "c", [], "stop")

    def test_without_parallel_calls_only_the_first_complete_one_counts(self) -> None:
        answer = read(self.MARKUP, parallel_tool_calls=False)
        assert [each.name for each in answer.tool_calls] == ["run"]
        cut = tag("call", tool="run") + tag("argument", key="path") + "/usr"
        assert calls_of(cut, call("list"), call("run"), parallel_tool_calls=False) == [("list", "{}")]

    @pytest.mark.parametrize(
        "choice", ["auto", "required", {"type": "function", "function": {"name": "run"}}]
    )
    def test_any_other_choice_gives_all(self, choice: object) -> None:
        answer = read(self.MARKUP, tool_choice=choice, tools=TOOLS)
        assert [each.name for each in answer.tool_calls] == ["run", "list"]


class TestFinishReason:
    def reason(self, *rest: str, finish: str = "stop") -> str:
        return read(turn("t", "c", *rest), finish=finish).finish_reason

    def test_it_is_tool_calls_after_a_complete_call(self) -> None:
        assert self.reason(tools(call("run"))) == "tool_calls"

    @pytest.mark.parametrize("reason", ["length", "abort", "error"])
    def test_what_the_engine_says_otherwise_is_kept(self, reason: str) -> None:
        assert self.reason(tools(call("run")), finish=reason) == reason

    def test_it_is_stop_when_a_required_call_is_missing(self) -> None:
        assert read(turn("t", "no"), tool_choice="required").finish_reason == "stop"


class TestIds:
    def ids(self, **options: object) -> list[str]:
        return [each.id for each in read(turn("", "", tools(call("run"), call("run"))), **options).tool_calls]

    def test_they_are_unique_by_default(self) -> None:
        assert len({*self.ids(), *self.ids()}) == 4

    def test_they_can_be_name_and_index(self) -> None:
        assert self.ids(tool_call_ids="name_index") == ["run:0", "run:1"]


class TestFinishedCalls:
    @staticmethod
    def finished(markup: str, size: int) -> list[tuple[str, Any]]:
        reader = parser(tools=TOOLS)
        for piece in grouped(ids_of(markup), size):
            reader.feed(piece)
        reader.finish("stop")
        return [tuple(call) for call in reader.finished_calls()]

    @pytest.mark.parametrize("size", GROUPS)
    def test_they_hold_the_values_that_a_reader_of_the_arguments_gets(self, size: int) -> None:
        markup = turn(
            "hm",
            "",
            tools(
                call(
                    "run",
                    argument("text", 'a long "text" with \\ and \n in it'),
                    argument("n", "1e2", "number"),
                    argument("odd", "NaN", "number"),
                    argument("n", "[1, 2]", "array"),
                    argument("empty", ""),
                ),
                call("run", tag("json", type="object") + '{"a": 1}' + end("json")),
                call("run", tag("json", type="object") + "{" + end("json")),
                call("run"),
            ),
        )
        assert self.finished(markup, size) == [
            ("run", {"text": 'a long "text" with \\ and \n in it', "n": [1, 2], "odd": "NaN", "empty": ""}),
            ("run", {"a": 1}),
            ("run", None),
            ("run", {}),
        ]

    @pytest.mark.parametrize("size", GROUPS)
    def test_a_call_that_is_cut_or_hidden_is_none(self, size: int) -> None:
        whole = turn("", "", tools(call("run", argument("a", "b")), call("run", argument("c", "d"))))
        assert [value for _, value in self.finished(whole, size)] == [{"a": "b"}, {"c": "d"}]
        cut = whole[: whole.rindex("d<|close|>")]
        assert [value for _, value in self.finished(cut, size)] == [{"a": "b"}]
