"""Control tokens spelled out in text, for workers that send no token ids.

Text cannot tell a marker from its quotation; with ids nothing of this is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.kimi_k3.markers import CLOSE, CLOSE_ID, END_OF_MSG, END_OF_MSG_ID, OPEN, OPEN_ID, SEP, SEP_ID

_IDS = {OPEN: OPEN_ID, CLOSE: CLOSE_ID, SEP: SEP_ID, END_OF_MSG: END_OF_MSG_ID}
_MARKER = re.compile("(" + "|".join(map(re.escape, _IDS)) + ")")
_PREFIXES = frozenset(marker[:end] for marker in _IDS for end in range(1, len(marker)))
_LONGEST = max(map(len, _PREFIXES))
# `<` and `<|` are as likely a text's own end as a cut marker's beginning.
_AMBIGUOUS = ("<", "<|")


class TextScanner:
    """Cuts text into text and control ids; holds back at most the beginning of one marker."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> Iterator[str | int]:
        """Pieces of text, and ids of control tokens, in order."""
        pieces = _MARKER.split(self._held + text)
        tail = pieces[-1]
        self._held = _marker_prefix(tail)
        pieces[-1] = tail[: len(tail) - len(self._held)]
        for piece in pieces:
            if piece:
                yield _IDS.get(piece, piece)

    def finish(self) -> str:
        """What is held back at the end, if it is text rather than a cut marker."""
        held, self._held = self._held, ""
        return held if held in _AMBIGUOUS else ""


def _marker_prefix(text: str) -> str:
    """The longest end of a text that a marker may begin with."""
    start = text.rfind("<", max(0, len(text) - _LONGEST))
    return text[start:] if start >= 0 and text[start:] in _PREFIXES else ""
