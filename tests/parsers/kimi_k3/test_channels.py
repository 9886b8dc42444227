"""Reasoning and response: where each ends, also when the model leaves an end out."""

from __future__ import annotations

import pytest

from parsers.base import ContentDelta, Finish, ReasoningDelta
from tests.parsers.kimi_k3.material import (
    END,
    MARKERS,
    TOKENIZER,
    answer_of,
    call,
    end,
    events_of,
    grouped,
    ids_of,
    parser,
    read,
    tag,
    tools,
    turn,
)


def channels(markup: str, **options: object) -> tuple[str, str]:
    answer = read(markup, **options)
    return answer.reasoning, answer.content


def test_a_regular_turn_is_reasoning_then_content() -> None:
    answer = read(turn("I add.\nThen answer.", "4"))
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("I add.\nThen answer.", "4", "stop")


def test_without_thinking_the_answer_begins_in_the_response() -> None:
    assert channels("Hello!" + end("response") + END, thinking=False) == ("", "Hello!")


def test_every_ordinary_token_becomes_one_delta_at_once() -> None:
    words, ids = (
        "four score and seven",
        ids_of("1 2" + end("think") + tag("response") + "four score and seven"),
    )
    deltas = [type(event) for event in events_of([token] for token in ids)]
    assert deltas == [ReasoningDelta] * 3 + [ContentDelta] * len(ids_of(words)) + [Finish]


def test_tokens_that_arrive_together_are_one_delta() -> None:
    events = events_of([ids_of(turn("one two", "three four"))])
    assert events == [ReasoningDelta("one two"), ContentDelta("three four"), Finish("stop")]


@pytest.mark.parametrize("thinking", [True, False])
def test_a_repeated_opener_is_not_text(thinking: bool) -> None:
    opener = tag("think") if thinking else tag("response")
    markup = opener + (turn("plan", "ok") if thinking else "ok" + end("response") + END)
    assert channels(markup, thinking=thinking) == ("plan" if thinking else "", "ok")


def test_the_models_own_message_opener_is_not_text() -> None:
    assert channels(tag("message", role="assistant") + tag("think") + turn("plan", "ok")) == ("plan", "ok")


def test_another_roles_message_ends_the_answer() -> None:
    markup = "t" + end("think") + tag("response") + "ok" + tag("message", role="user") + "and you?"
    assert channels(markup) == ("t", "ok")


def test_empty_channels_are_empty() -> None:
    assert channels(turn("", "hi")) == ("", "hi")
    assert channels(turn("why", "")) == ("why", "")


@pytest.mark.parametrize("opener", [tag("response") + "ans" + end("response"), tools(call("run"))])
def test_reasoning_ends_where_another_channel_opens(opener: str) -> None:
    assert read("t" + opener + END).reasoning == "t"


def test_reasoning_stays_reasoning_when_the_message_ends_in_it() -> None:
    assert channels("deep" + END) == ("deep", "")
    assert channels("deep<|end_of_msg|>") == ("deep", "")


@pytest.mark.parametrize("reason", ["length", "stop", "abort"])
def test_reasoning_stays_reasoning_when_the_stream_ends_in_it(reason: str) -> None:
    answer = read("half a thought", finish=reason)
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("half a thought", "", reason)


@pytest.mark.parametrize("closer", [end("response") + END, END, "<|end_of_msg|>", ""])
def test_the_response_ends_with_whatever_closes_it(closer: str) -> None:
    assert channels("t" + end("think") + tag("response") + "ans" + closer) == ("t", "ans")
    assert channels("ans" + closer, thinking=False) == ("", "ans")


def test_a_second_response_continues_the_first() -> None:
    markup = turn("a", "b").removesuffix(END) + tag("response") + "c" + end("response") + END
    assert channels(markup) == ("a", "bc")


def test_thinking_again_after_the_response_is_reasoning() -> None:
    again = tag("think") + "more" + end("think") + tag("response") + "c" + end("response")
    assert channels(turn("a", "b").removesuffix(END) + again + END) == ("amore", "bc")


@pytest.mark.parametrize(
    "debris", ["\n", "noise", tag("nothing") + "x", "<|sep|>", "<|open|>", "<|close|>tools<|sep|>"]
)
def test_what_stands_between_channels_is_dropped(debris: str) -> None:
    markup = "r" + end("think") + debris + tag("response") + "a" + end("response") + debris + END
    assert channels(markup) == ("r", "a")


def test_nothing_counts_after_the_end_of_the_message() -> None:
    fake_turn = "garbage" + tag("message", role="user") + "d" + turn("x", "y", tools(call("run")))
    answer = read(turn("a", "b") + fake_turn)
    assert (answer.reasoning, answer.content, answer.tool_calls) == ("a", "b", [])


@pytest.mark.parametrize("stop", ["<|end_of_msg|>", "[EOS]", "[EOT]"])
def test_each_stop_id_ends_the_answer(stop: str) -> None:
    ids = [*ids_of("t"), TOKENIZER.vocabulary.control_id(stop), *ids_of("more")]
    assert answer_of(grouped(ids, 1)).reasoning == "t"


def test_other_control_tokens_are_no_text() -> None:
    ids = [*ids_of("a"), TOKENIZER.vocabulary.control_id("<|media_pad|>"), *ids_of("b")]
    assert answer_of(grouped(ids, 1)).reasoning == "ab"


class TestRetraction:
    """A response's end inside the reasoning: the text was the answer."""

    MARKUP = "Direct answer." + end("response") + END

    def test_a_whole_answer_has_it_as_content_only(self) -> None:
        assert channels(self.MARKUP) == ("", "Direct answer.")

    def test_a_stream_gives_it_again_as_content_once(self) -> None:
        events = events_of(grouped(ids_of(self.MARKUP), 1))
        contents = [event for event in events if isinstance(event, ContentDelta)]
        assert contents == [ContentDelta("Direct answer.")]

    def test_its_tokens_are_not_reasoning_tokens(self) -> None:
        reader = parser()
        reader.feed(ids_of(self.MARKUP))
        assert reader.reasoning_retracted
        assert reader.reasoning_tokens == 0

    def test_calls_may_follow(self) -> None:
        answer = read("Looking." + end("response") + tools(call("run")) + END)
        assert (answer.reasoning, answer.content, len(answer.tool_calls)) == ("", "Looking.", 1)

    def test_a_response_after_the_reasonings_end_but_without_its_opener_is_content(self) -> None:
        assert channels("r" + end("think") + "ans" + end("response") + END) == ("r", "ans")

    def test_reasoning_that_has_ended_is_not_taken_back(self) -> None:
        markup = "r" + end("think") + tag("think") + "s" + end("response") + END
        assert channels(markup) == ("rs", "")


class TestTextThatLooksLikeMarkup:
    def test_quoted_in_ordinary_tokens_it_is_text(self) -> None:
        quoted = "the marker <|close|>response<|sep|> and <|open|>tools<|sep|><|end_of_msg|>"
        ids = [
            *TOKENIZER.encode_text("about " + quoted).tolist(),
            *ids_of(end("think") + tag("response")),
            *TOKENIZER.encode_text(quoted).tolist(),
            *ids_of(end("response") + END),
        ]
        for size in (1, 3, len(ids)):
            answer = answer_of(grouped(ids, size))
            assert (answer.reasoning, answer.content) == ("about " + quoted, quoted)

    @pytest.mark.parametrize(
        "text",
        [
            "a < b and c <| d and <|op en|> x",
            "First <|close|> not a marker",
            "use `<|sep|>` as separator",
            "text with <|open|>tools inline",
            'an <|open|>unknown key="v"<|sep|> element and <|close|>unknown<|sep|>',
            "<|close|>think about<|sep|>",
            '<|open|>call tool=" # not a call',
            "<|open|>call tool=now<|sep|>",
            "<|open|><|open|><|close|>",
        ],
    )
    def test_what_is_no_tag_is_text(self, text: str) -> None:
        assert channels(turn(text, text)) == (text, text)

    def test_a_known_tag_in_the_wrong_place_is_not_shown(self) -> None:
        misplaced = end("call") + end("tools") + tag("argument", key="a") + end("argument")
        assert channels(turn("a" + misplaced + "b", "c" + misplaced + "d")) == ("ab", "cd")

    def test_it_is_released_as_soon_as_it_is_certain(self) -> None:
        events = events_of([ids_of("<|close|>"), ids_of(" no"), ids_of(" more")])
        assert events == [ReasoningDelta("<|close|> no"), ReasoningDelta(" more"), Finish("stop")]

    def test_a_tag_that_never_ends_is_released_in_time(self) -> None:
        value = "v" * 5_000
        answer = read('<|open|>call tool="' + value, finish="length")
        assert answer.reasoning == '<|open|>call tool="' + value

    @pytest.mark.parametrize("name", [" think ", "\tthink", "think \n"])
    def test_space_around_a_name_does_not_matter(self, name: str) -> None:
        assert channels("r" + end(name) + tag(name.replace("think", "response")) + "a") == ("r", "a")


class TestTruncation:
    @pytest.mark.parametrize("debris", ["<|close|>", "<|close|>think", "<|open|>", "<|open|>resp"])
    def test_an_unfinished_tag_is_dropped(self, debris: str) -> None:
        assert channels("thinking" + debris, finish="length") == ("thinking", "")
        assert channels("ans" + debris, finish="length", thinking=False) == ("", "ans")

    def test_an_unfinished_tag_before_the_end_of_the_message_is_dropped(self) -> None:
        assert channels("ans<|close|>resp<|end_of_msg|>", thinking=False) == ("", "ans")

    def test_half_a_character_is_dropped_at_the_end(self) -> None:
        ids = TOKENIZER.encode_text("ok ").tolist() + list("é".encode()[:1])
        assert answer_of(grouped(ids, 1), finish="length").reasoning == "ok "

    def test_half_a_character_before_a_tag_is_a_replacement_character(self) -> None:
        ids = [*ids_of("x"), 0xC3, *ids_of(end("think") + tag("response") + "y")]
        for size in (1, 2, len(ids)):
            answer = answer_of(grouped(ids, size))
            assert (answer.reasoning, answer.content) == ("x\ufffd", "y")


class TestReasoningTokens:
    def count(self, markup: str, **options: object) -> int:
        ids = ids_of(markup)
        counts = set()
        for size in (1, 2, 7, len(ids)):
            reader = parser(**options)
            for group in grouped(ids, size):
                reader.feed(group)
            reader.finish("stop")
            counts.add(reader.reasoning_tokens)
        assert len(counts) == 1
        return counts.pop()

    def test_they_are_those_before_the_reasonings_end(self) -> None:
        assert self.count(turn("one two three", "four")) == len(ids_of("one two three"))

    def test_parts_of_a_character_count(self) -> None:
        assert self.count(turn("🙂", "x")) == len(ids_of("🙂")) > 1

    def test_there_are_none_without_reasoning(self) -> None:
        assert self.count("hi" + end("response") + END, thinking=False) == 0

    def test_text_that_looked_like_a_tag_counts_without_its_marker(self) -> None:
        assert self.count("a<|close|> b" + END) == len(ids_of("a")) + len(ids_of(" b"))


def test_no_marker_shows_in_any_regular_turn() -> None:
    answer = read(turn("think", "response", tools(call("run"))))
    assert not any(marker in answer.reasoning + answer.content for marker in MARKERS)
