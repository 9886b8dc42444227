"""A slow reader of structural tags: what one accepts, without an engine. The live lane asks a real one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from parsers.base import Segment
from parsers.json_schema.validator import first_violation
from parsers.kimi_k3.vocabulary import CONTROL_IDS

Symbols = Sequence[str | int]
"""Characters of ordinary text, and ids of control tokens."""


def accepts(tag: Any, segments: Sequence[Segment]) -> bool:
    symbols: list[str | int] = []
    for text, is_control in segments:
        symbols += [CONTROL_IDS[text]] if is_control else text
    assert tag["type"] == "structural_tag"
    return len(symbols) in ends(tag["format"], symbols, 0)


def ends(form: Any, symbols: Symbols, start: int) -> set[int]:
    """Where what the format accepts from `start` on may end."""
    return set(_READERS[form["type"]](form, symbols, start))


def _sequence(form: Any, symbols: Symbols, start: int) -> set[int]:
    places = {start}
    for element in form["elements"]:
        places = {end for place in places for end in ends(element, symbols, place)}
    return places


def _or(form: Any, symbols: Symbols, start: int) -> set[int]:
    return {end for element in form["elements"] for end in ends(element, symbols, start)}


def _optional(form: Any, symbols: Symbols, start: int) -> set[int]:
    return {start} | ends(form["content"], symbols, start)


def _star(form: Any, symbols: Symbols, start: int) -> set[int]:
    found, new = {start}, {start}
    while new:
        new = {end for place in new for end in ends(form["content"], symbols, place)} - found
        found |= new
    return found


def _plus(form: Any, symbols: Symbols, start: int) -> set[int]:
    return {end for place in ends(form["content"], symbols, start) for end in _star(form, symbols, place)}


def _token(form: Any, symbols: Symbols, start: int) -> set[int]:
    return {start + 1} if symbols[start : start + 1] == [form["token"]] else set()


def _const(form: Any, symbols: Symbols, start: int) -> set[int]:
    text = form["value"]
    return {start + len(text)} if symbols[start : start + len(text)] == list(text) else set()


def _any_tokens(form: Any, symbols: Symbols, start: int) -> Iterator[int]:
    yield start
    for place in range(start, len(symbols)):
        if symbols[place] in form["exclude_tokens"]:
            return
        yield place + 1


def _text_from(symbols: Symbols, start: int) -> str:
    text = []
    for symbol in symbols[start:]:
        if isinstance(symbol, int):
            break
        text.append(symbol)
    return "".join(text)


def _regex(form: Any, symbols: Symbols, start: int) -> Iterator[int]:
    text = _text_from(symbols, start)
    yield from (start + size for size in range(len(text) + 1) if re.fullmatch(form["pattern"], text[:size]))


def _json_schema(form: Any, symbols: Symbols, start: int) -> Iterator[int]:
    text = _text_from(symbols, start)
    try:
        value, size = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return
    if first_violation(form["json_schema"], value) is None:
        yield start + size


_READERS: dict[str, Any] = {
    "sequence": _sequence,
    "or": _or,
    "optional": _optional,
    "star": _star,
    "plus": _plus,
    "token": _token,
    "const_string": _const,
    "any_tokens": _any_tokens,
    "regex": _regex,
    "json_schema": _json_schema,
}
