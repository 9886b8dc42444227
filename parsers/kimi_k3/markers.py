"""The four control tokens that make Kimi-K3's structure, and the tags they form.

A tag is `<|open|>` NAME (` key="value"`)* `<|sep|>` or `<|close|>` NAME `<|sep|>`; a message ends with
`<|end_of_msg|>`. Only the control ids make structure: the same characters as ordinary text are text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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

_NAMES = ("think", "response", "tools", "call", "argument", "json", "message")
_NAME = re.compile(r"\s*([a-z]*)(\s*)")
_ATTRIBUTE = re.compile(r'\s+([^\s="]+)="([^"]*)"')
_UNFINISHED_NAME = frozenset(name[:end] for name in _NAMES for end in range(len(name)))


class Tag(NamedTuple):
    """A complete tag with a known name."""

    closes: bool
    name: str
    attributes: Mapping[str, str]


def escape_attribute(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape_attribute(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")


def parse_tag(closes: bool, body: str) -> Tag | None:
    """The tag of the text between `<|open|>` or `<|close|>` and `<|sep|>`; None when it is none.

    Space around the name and the attributes is allowed: some detokenizers put it there.
    """
    head = _NAME.match(body)
    if head is None or head[1] not in _NAMES:
        return None
    rest = body[head.end(1) :]
    if not rest or rest.isspace():
        return Tag(closes, head[1], {})
    return None if closes else _with_attributes(head[1], rest)


def _with_attributes(name: str, text: str) -> Tag | None:
    attributes: dict[str, str] = {}
    position = 0
    while found := _ATTRIBUTE.match(text, position):
        attributes[found[1]] = unescape_attribute(found[2])
        position = found.end()
    rest = text[position:]
    return Tag(False, name, attributes) if not rest or rest.isspace() else None


def may_become_tag(closes: bool, body: str) -> bool:
    """Whether more text could still make a tag of this one; decides how long text is held back."""
    if len(body) > MAX_TAG_CHARS:
        return False
    head = _NAME.match(body)
    if head is None or head.end() == len(body):
        return head is not None and (head[1] in _NAMES or (not head[2] and head[1] in _UNFINISHED_NAME))
    # Something follows the name: only attributes may, after a space.
    return not closes and bool(head[2]) and head[1] in _NAMES
