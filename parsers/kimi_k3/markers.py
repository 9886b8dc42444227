"""The four control tokens that make Kimi-K3's structure, and the tags they form.

A tag is `<|open|>` NAME (` key="value"`)* `<|sep|>` or `<|close|>` NAME `<|sep|>`; a message ends with
`<|end_of_msg|>`. Only the control ids make structure: the same characters as ordinary text are text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum, auto
from functools import cache, lru_cache
from typing import NamedTuple

END_OF_MSG = "<|end_of_msg|>"
OPEN = "<|open|>"
CLOSE = "<|close|>"
SEP = "<|sep|>"
MARKERS = (OPEN, CLOSE, SEP, END_OF_MSG)

FIRST_CONTROL_ID = 163_584
"""Base ranks are below this id; the 256 ids from here on are control slots."""
END_OF_MSG_ID = 163_586
OPEN_ID = 163_587
CLOSE_ID = 163_588
SEP_ID = 163_589
# `[EOS]` and `[EOT]` are the tokenizer's own ends; the model's generation config names the first.
STOP_IDS = (END_OF_MSG_ID, 163_585, 163_593)

MAX_TAG_CHARS = 4_096
"""Text after `<|open|>` or `<|close|>` is no tag once it is longer."""
_KNOWN_TEXTS = 256
"""Texts that are remembered for one place inside a tag."""

_NAMES = frozenset({"think", "response", "tools", "call", "argument", "json", "message"})
_NAME_BEGINNINGS = frozenset(name[:end] for name in _NAMES for end in range(1, len(name) + 1))
_ATTRIBUTE = re.compile(r'([^\s="]+)="([^"]*)"')


def escape_attribute(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape_attribute(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")


class Tag(NamedTuple):
    """A complete tag with a known name."""

    name: str
    """Without attributes; a closing tag's begins with a slash."""
    attributes: Mapping[str, str]


class _In(IntEnum):
    """Where in a tag the next character is."""

    START = auto()
    NAME = auto()
    SPACE = auto()
    KEY = auto()
    EQUALS = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    NOWHERE = auto()


class TagReader:
    """Reads the text between a marker and `<|sep|>`.

    Space around the name and the attributes is allowed: some detokenizers put it there.
    """

    __slots__ = ("_body", "_marker", "_place", "tokens")

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._body = ""
        self._place = _START[marker]
        self.tokens = 0

    @property
    def text(self) -> str:
        """The marker and what followed it."""
        return self._marker + self._body

    def feed(self, text: str, tokens: int) -> bool:
        """Reads on. False when this can no longer become a tag."""
        self._body += text
        self.tokens += tokens
        self._place = self._place[text]
        return self._place.can_become_tag and len(self._body) <= MAX_TAG_CHARS

    def finish(self) -> Tag | None:
        """The tag, now that its end has come; None when it is none."""
        place = self._place
        if not place.is_tag:
            return None
        return _CLOSING_TAGS[place.name] if self._marker == CLOSE else _opening_tag(place.name, self._body)


class _Place(dict[str, "_Place"]):
    """A place inside a tag, and where each text leads from it: tags are few, so most texts are known."""

    __slots__ = ("can_become_tag", "closes", "inside", "is_tag", "name")

    def __init__(self, closes: bool, inside: _In, name: str) -> None:
        self.closes = closes
        self.inside = inside
        self.name = name
        self.can_become_tag = inside is not _In.NOWHERE
        self.is_tag = inside in (_In.NAME, _In.SPACE, _In.AFTER_VALUE) and name in _NAMES

    def __missing__(self, text: str) -> _Place:
        place = _place(self.closes, *_advance(self.closes, self.inside, self.name, text))
        if len(self) < _KNOWN_TEXTS:
            self[text] = place
        return place


@cache
def _place(closes: bool, inside: _In, name: str) -> _Place:
    return _Place(closes, inside, name)


_START = {OPEN: _place(False, _In.START, ""), CLOSE: _place(True, _In.START, "")}
_CLOSING_TAGS = {name: Tag("/" + name, {}) for name in _NAMES}


@lru_cache(maxsize=1_024)
def _opening_tag(name: str, body: str) -> Tag:
    return Tag(name, {key: unescape_attribute(value) for key, value in _ATTRIBUTE.findall(body)})


def _advance(closes: bool, inside: _In, name: str, text: str) -> tuple[_In, str]:
    for char in text:
        if inside in (_In.START, _In.NAME) and not char.isspace():
            name += char
            inside = _In.NAME if name in _NAME_BEGINNINGS else _In.NOWHERE
        else:
            inside = _next_place(inside, char, closes=closes, named=name in _NAMES)
        if inside is _In.NOWHERE:
            return inside, ""
    return inside, name


def _next_place(place: _In, char: str, *, closes: bool, named: bool) -> _In:
    match place:
        case _In.START:
            return _In.START
        case _In.NAME if named:
            return _In.SPACE
        case _In.SPACE | _In.AFTER_VALUE if char.isspace():
            return _In.SPACE
        case _In.SPACE if not closes and char not in '="':
            return _In.KEY
        case _In.KEY if char == "=":
            return _In.EQUALS
        case _In.KEY if char != '"' and not char.isspace():
            return _In.KEY
        case _In.EQUALS if char == '"':
            return _In.VALUE
        case _In.VALUE:
            return _In.AFTER_VALUE if char == '"' else _In.VALUE
    return _In.NOWHERE
