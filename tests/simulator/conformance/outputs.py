"""The ids that a recorded model said, from answers that have only its text.

A simulated worker has no weights, so it is told what to say; the ids matter because pieces of a stream are
tokens. Any ids that give the recorded text in the recorded number of tokens will do.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from simulator.tokens import HALF, Tokens

Json = Any


class Piece(NamedTuple):
    """Some of a choice's output: its tokens as ids or names where they are there, else only how many."""

    text: str
    tokens: int
    ids: list[int] | None = None
    names: list[str] | None = None


def of_body(answer: Json, echoed: str = "") -> list[list[Piece]]:
    """Pieces of each choice of a whole answer, whose texts begin with the echoed prompt."""
    choices = answer["choices"]
    count = answer["usage"]["completion_tokens"] // len(choices)
    texts = [_text(choice.get("message") or choice).removeprefix(echoed) for choice in choices]
    return [[_piece(choice, text, count)] for choice, text in zip(choices, texts, strict=True)]


def of_stream(chunks: list[Json]) -> list[list[Piece]]:
    """Pieces of each choice of a stream: one for each chunk."""
    pieces: dict[int, list[Piece]] = {}
    said: dict[int, int] = {}
    for chunk in chunks:
        for choice in chunk["choices"] if isinstance(chunk, dict) else []:
            index = choice["index"]
            usage = chunk.get("usage")
            before = said.get(index, 0)
            said[index] = (
                usage["completion_tokens"] if usage else before + ("role" not in choice.get("delta", {}))
            )
            text = _text(choice.get("delta", choice))
            pieces.setdefault(index, []).append(_piece(choice, text, said[index] - before))
    return [pieces[index] for index in sorted(pieces)]


class Speller:
    """Finds ids for texts."""

    def __init__(self, tokens: Tokens) -> None:
        self._by_text: dict[str, int] = {}
        for token_id in range(tokens.size):
            text = tokens.bytes_of(token_id).decode("utf-8", "replace")
            self._by_text.setdefault(text, token_id)
        if HALF in self._by_text:  # a vocabulary of ids alone has no half characters
            self._by_text[""] = self._by_text[HALF]
        self._longest = max(map(len, self._by_text))

    def ids(self, pieces: list[Piece]) -> list[int]:
        """Ids of all the pieces. Raises ValueError when there are none."""
        return [token_id for piece in pieces for token_id in self._of(piece)]

    def _of(self, piece: Piece) -> list[int]:
        if piece.ids is not None:
            return piece.ids
        if piece.names is not None:
            return [self._named(name) for name in piece.names]
        return self._spell(piece.text, piece.tokens)

    def _named(self, name: str) -> int:
        token_id = name.removeprefix("token_id:")
        return int(token_id) if token_id != name else self._by_text[name]

    def _spell(self, text: str, count: int) -> list[int]:
        @cache
        def spell(place: int, left: int) -> tuple[int, ...] | None:
            if place == len(text):
                # What is left made no text: bytes that wait for more.
                return (self._by_text[HALF],) * left
            if left == 0:
                return None
            for end in range(min(len(text), place + self._longest), place, -1):
                token_id = self._by_text.get(text[place:end])
                rest = None if token_id is None else spell(end, left - 1)
                if token_id is not None and rest is not None:
                    return (token_id, *rest)
            return None

        found = spell(0, count)
        if found is None:
            raise ValueError(f"no {count} tokens for {text!r}")
        return list(found)


def _piece(choice: Json, text: str, count: int) -> Piece:
    logprobs = choice.get("logprobs") or {}
    names = logprobs.get("tokens") or [entry.get("token") for entry in logprobs.get("content") or []]
    known = names if names and None not in names else None
    return Piece(text, count, choice.get("token_ids"), known)


def _text(said: Json) -> str:
    return said.get("text") or said.get("reasoning") or said.get("content") or ""
