"""Kimi-K3's prompt markup, piece by piece: tags, notes and media as segments.

A segment's borders decide the ids: an attribute is four segments (` key`, `="`, the value, `"`), as in
the model's own encoder. What is the same in every prompt comes in runs, so that a long conversation is
few pieces.
"""

from __future__ import annotations

from functools import lru_cache

from parsers.base import Piece, Segment, SegmentRun
from parsers.kimi_k3.markers import CLOSE, END_OF_MSG, OPEN, SEP, escape_attribute

_OPEN, _CLOSE, _SEP, _END = (Segment(marker, True) for marker in (OPEN, CLOSE, SEP, END_OF_MSG))
_EQUALS, _QUOTE = Segment('="', False), Segment('"', False)


# As Segment(...) does, at half its cost: long conversations have thousands of texts.
_new_segment = tuple.__new__


def _key(key: str) -> tuple[Segment, ...]:
    return Segment(" " + key, False), _EQUALS


def opening(name: str, **attributes: str) -> tuple[Segment, ...]:
    """An opening tag of constant attributes."""
    written = ((*_key(key), Segment(value, False), _QUOTE) for key, value in attributes.items())
    return (_OPEN, Segment(name, False), *(segment for each in written for segment in each), _SEP)


def closing(name: str) -> tuple[Segment, ...]:
    return _CLOSE, Segment(name, False), _SEP


END_MESSAGE = (*closing("message"), _END)
_CLOSINGS = {
    name: SegmentRun.of(*closing(name)) for name in ("think", "response", "tools", "call", "argument", "json")
}
_END_OF_MESSAGE = SegmentRun.of(*END_MESSAGE)
_IMAGE_PLACEHOLDER = Segment("<|kimi_image_placeholder|>", True)
_MEDIA_BEGIN = SegmentRun.of(Segment("<|media_begin|>", True))
_MEDIA_END = SegmentRun.of(
    *(Segment(f"<|media_{part}|>", True) for part in ("content", "pad", "end")),
)


@lru_cache(maxsize=256)
def _around_values(name: str, keys: tuple[str, ...]) -> tuple[SegmentRun, ...]:
    """What stands before, between and after the values of a tag's attributes."""
    parts: list[list[Segment]] = [[_OPEN, Segment(name, False)]]
    for key in keys:
        parts[-1] += _key(key)
        parts.append([_QUOTE])
    parts[-1].append(_SEP)
    return tuple(SegmentRun.of(*part) for part in parts)


class Prompt:
    """The pieces of a prompt under construction."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

        self.fixed = self.pieces.append
        """Adds a run."""

    def text(self, text: str) -> None:
        if text:
            self.pieces.append(_new_segment(Segment, (text, False)))

    def open(self, name: str, *attributes: tuple[str, str]) -> None:
        """An opening tag whose attributes' values come with the request; an empty one is no segment."""
        keys, values = zip(*attributes, strict=True) if attributes else ((), ())
        first, *others = _around_values(name, keys)
        self.pieces.append(first)
        for value, run in zip(values, others, strict=True):
            self.text(escape_attribute(value))
            self.pieces.append(run)

    def close(self, name: str) -> None:
        self.pieces.append(_CLOSINGS[name])

    def end_message(self) -> None:
        self.pieces.append(_END_OF_MESSAGE)

    def image(self, width: int, height: int) -> None:
        """An image's place; the size is that of the original in pixels."""
        self.pieces += (_MEDIA_BEGIN, Segment(f"image {width}x{height}", False), _MEDIA_END)

    def image_placeholder(self) -> None:
        """An image's place before anybody knows its size; the tokenizer has no token of this name."""
        self.pieces.append(_IMAGE_PLACEHOLDER)
