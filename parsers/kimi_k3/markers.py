"""The four control tokens that make Kimi-K3's structure, and the tags they form.

A tag is `<|open|>` NAME (` key="value"`)* `<|sep|>` or `<|close|>` NAME `<|sep|>`; a message ends with
`<|end_of_msg|>`. Only the control ids make structure: the same characters as ordinary text are text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum, auto
from functools import lru_cache
from typing import NamedTuple

END_OF_MSG = "<|end_of_msg|>"
OPEN = "<|open|>"
CLOSE = "<|close|>"
SEP = "<|sep|>"

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

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._body = ""
        self._position: _Position = (_In.START, "")
        self.tokens = 0

    @property
    def text(self) -> str:
        """The marker and what followed it."""
        return self._marker + self._body

    def feed(self, text: str, tokens: int) -> bool:
        """Reads on. False when this can no longer become a tag."""
        self._body += text
        self.tokens += tokens
        self._position = _advance(self._marker == CLOSE, self._position, text)
        return self._position[0] is not _In.NOWHERE and len(self._body) <= MAX_TAG_CHARS

    def finish(self) -> Tag | None:
        """The tag, now that its end has come; None when it is none."""
        place, name = self._position
        if place not in (_In.NAME, _In.SPACE, _In.AFTER_VALUE) or name not in _NAMES:
            return None
        return Tag("/" + name, {}) if self._marker == CLOSE else _opening_tag(name, self._body)


_Position = tuple[_In, str]
"""A place and the name read so far."""


# Tags are few and their tokens fewer: both are looked up far more often than they are worked out.
@lru_cache(maxsize=1_024)
def _opening_tag(name: str, body: str) -> Tag:
    return Tag(name, {key: unescape_attribute(value) for key, value in _ATTRIBUTE.findall(body)})


@lru_cache(maxsize=4_096)
def _advance(closes: bool, position: _Position, text: str) -> _Position:
    place, name = position
    for char in text:
        if place in (_In.START, _In.NAME) and not char.isspace():
            name += char
            place = _In.NAME if name in _NAME_BEGINNINGS else _In.NOWHERE
        else:
            place = _next_place(place, char, closes=closes, named=name in _NAMES)
    return place, name


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
