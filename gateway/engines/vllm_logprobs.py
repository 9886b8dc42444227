"""Log-probabilities in vLLM's answers: an entry a token from generate, parallel lists from completions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gateway.engines.base import TokenLogprob

LEAST = -9999.0
"""What stands for minus infinity, as JSON has no such number."""
_BY_ID = "token_id:"


class _Entry(msgspec.Struct):
    token_id: int
    logprob: float | None = None
    top_logprobs: list[_Entry] = []


class _Logprobs(msgspec.Struct):
    content: list[_Entry] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(_Chunk).decode


def read_logprobs(payload: bytes) -> Iterator[tuple[int, list[TokenLogprob]]]:
    """(choice, its tokens) of an event that has some. Raises msgspec.DecodeError."""
    for choice in _decode(payload).choices:
        found = choice.logprobs
        if found is not None:
            yield choice.index, _from_lists(found) if found.content is None else _from_entries(found.content)


def _from_entries(entries: Sequence[_Entry]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            entry.token_id,
            finite(entry.logprob),
            [(other.token_id, finite(other.logprob)) for other in entry.top_logprobs],
        )
        for entry in entries
    ]


def _from_lists(found: _Logprobs) -> list[TokenLogprob]:
    tops = found.top_logprobs or [None] * len(found.tokens)
    return [
        TokenLogprob(_id(token), finite(value), _ranked(top or {}))
        for token, value, top in zip(found.tokens, found.token_logprobs, tops, strict=False)
    ]


def _ranked(top: Mapping[str, float | None]) -> list[tuple[int, float]]:
    pairs = [(_id(token), finite(value)) for token, value in top.items()]
    return sorted(pairs, key=lambda pair: -pair[1])


def _id(token: str) -> int:
    """The id in `token_id:7`. Raises msgspec.DecodeError."""
    digits = token.removeprefix(_BY_ID)
    if digits == token or not digits.isdecimal():
        raise msgspec.DecodeError("a token is not named by its id")
    return int(digits)


def finite(value: float | None) -> float:
    """A log-probability as JSON can say it."""
    return max(value, LEAST) if value is not None and math.isfinite(value) else LEAST
