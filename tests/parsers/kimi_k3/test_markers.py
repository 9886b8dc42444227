from __future__ import annotations

import pytest

from parsers.kimi_k3.markers import (
    CLOSE,
    MAX_TAG_CHARS,
    OPEN,
    Tag,
    TagReader,
    escape_attribute,
    unescape_attribute,
)


def read_tag(marker: str, body: str) -> Tag | None:
    """The tag, having asserted that it is the same read at once and by character."""
    whole, pieces = TagReader(marker), TagReader(marker)
    may = whole.feed(body, 1)
    may_by_character = [pieces.feed(char, 1) for char in body]
    assert all(may_by_character) == may
    assert whole.finish() == pieces.finish()
    return whole.finish() if may else None


@pytest.mark.parametrize("name", ["think", "response", "tools", "call", "argument", "json", "message"])
def test_known_names_make_tags(name: str) -> None:
    assert read_tag(OPEN, name) == Tag(name, {})
    assert read_tag(CLOSE, f" {name} ") == Tag("/" + name, {})


def test_attributes_are_read_and_unescaped() -> None:
    tag = read_tag(OPEN, ' call  tool="a&amp;&quot;=b" index=""\n')
    assert tag == Tag("call", {"tool": 'a&"=b', "index": ""})


@pytest.mark.parametrize(
    "body",
    [
        "",
        "  ",
        "thin",
        "thinking",
        "Think",
        "t hink",
        "call tool",
        "call tool=",
        'call tool="',
        'calltool="a"',
    ],
)
def test_an_unknown_or_unfinished_body_makes_none(body: str) -> None:
    assert read_tag(OPEN, body) is None


@pytest.mark.parametrize(
    "body", ["x", "thinks", "call =", 'call "', "call a b", "call a=b", 'call a="b"c', "1"]
)
def test_what_can_become_no_tag_is_seen_at_once(body: str) -> None:
    assert not TagReader(OPEN).feed(body, 1)


def test_a_closing_tag_has_no_attributes() -> None:
    assert not TagReader(CLOSE).feed('call tool="a"', 1)


def test_a_tag_has_a_longest_length() -> None:
    reader = TagReader(OPEN)
    assert reader.feed('call a="' + "x" * (MAX_TAG_CHARS - 8), 1)
    assert not reader.feed("x", 1)


def test_it_gives_its_text_and_tokens_back() -> None:
    reader = TagReader(OPEN)
    reader.feed("ca", 1)
    reader.feed("ll ", 2)
    assert (reader.text, reader.tokens) == ("<|open|>call ", 3)


@pytest.mark.parametrize("value", ["", "a&b", '"', "&quot;", "&amp;quot;", "<b>"])
def test_escaping_is_reversible(value: str) -> None:
    assert '"' not in escape_attribute(value)
    assert unescape_attribute(escape_attribute(value)) == value
