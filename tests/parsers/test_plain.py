from __future__ import annotations

from typing import Any

import pytest

from gateway.tokens.tokenizer import Tokenizer
from parsers.base import Chat, ContentDelta, Finish, FormatError, OutputOptions, Segment
from parsers.plain import END, END_ID, PlainFormat
from parsers.registry import get_format


def test_everything_is_content() -> None:
    tokenizer = Tokenizer.load(PlainFormat())
    parser = PlainFormat().parser(OutputOptions(thinking=False), tokenizer.detokenizer())
    assert parser.feed(list(b"a <think> b")) == [ContentDelta("a <think> b")]
    assert parser.feed(list("é".encode()[:1])) == []
    assert parser.feed(list("é".encode()[1:])) == [ContentDelta("é")]
    assert parser.feed_text("text") == [ContentDelta("text")]
    assert parser.finish("length") == [Finish("length")]


def test_no_token_ends_the_text_unless_it_is_said_to() -> None:
    tokenizer = Tokenizer.load(get_format("plain"))
    assert PlainFormat().stop_token_ids == ()
    parser = get_format("plain").parser(OutputOptions(thinking=False), tokenizer.detokenizer())
    assert parser.feed([ord("a"), END_ID, ord("b")]) == [ContentDelta("a")]


@pytest.mark.parametrize("size", [1, 5])
def test_a_stop_token_ends_the_text(size: int) -> None:
    tokenizer = Tokenizer.load(get_format("kimi_k3"))
    stops = get_format("kimi_k3").stop_token_ids
    parser = PlainFormat(stops).parser(OutputOptions(thinking=False), tokenizer.detokenizer())
    ids = [*tokenizer.encode_text("one two").tolist(), stops[0], *tokenizer.encode_text("three").tolist()]
    events = [event for start in range(0, len(ids), size) for event in parser.feed(ids[start : start + size])]
    assert "".join(event.text for event in events if isinstance(event, ContentDelta)) == "one two"


def test_a_chat_is_lines_of_text() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
    ]
    encoded = PlainFormat().encode(Chat(messages=messages))
    assert encoded.segments == [Segment("system: S\nuser: ab\nassistant: \nassistant:", False)]


@pytest.mark.parametrize("content", [1, [{"type": "image_url"}], [1]])
def test_what_is_no_text_is_refused(content: object) -> None:
    with pytest.raises(FormatError) as refusal:
        PlainFormat().encode(Chat(messages=[{"role": "user", "content": content}]))
    assert refusal.value.param == "messages[0]"


def test_the_vocabulary_is_bytes() -> None:
    vocabulary = PlainFormat().load_vocabulary()
    assert list(vocabulary.encode_text("é" + END)) == list(("é" + END).encode())
    assert vocabulary.control_id(END) == END_ID
    assert vocabulary.token_bytes()[ord("a")] == b"a"
    assert len(vocabulary.token_bytes()) == vocabulary.size
    with pytest.raises(ValueError, match="no vocabulary"):
        PlainFormat().load_vocabulary(b"x")
