"""Log-probabilities in vLLM's answers: an entry a token from generate, parallel lists from completions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gateway.engines.base import PromptLogprob, TokenLogprob

LEAST = -9999.0
"""What stands for minus infinity, as JSON has no such number."""
_BY_ID = "token_id:"


class _Entry(msgspec.Struct):
    token: str = ""
    token_id: int | None = None
    """Absent before vLLM 0.32, where `token` names the id."""
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


class _PromptEntry(msgspec.Struct):
    logprob: float | None = None
    rank: int | None = None


_Prompt = list[dict[str, _PromptEntry] | None]


class _PromptChoice(msgspec.Struct):
    prompt_logprobs: _Prompt | None = None


class _PromptAnswer(msgspec.Struct):
    prompt_logprobs: _Prompt | None = None
    choices: list[_PromptChoice] = []


_decode_prompt = msgspec.json.Decoder(_PromptAnswer).decode


def read_prompt_logprobs(body: bytes, token_ids: Sequence[int]) -> list[PromptLogprob]:
    """Of a whole answer; generate has them beside its choices, completions in each of them.

    Raises msgspec.DecodeError.
    """
    answer = _decode_prompt(body)
    found = answer.prompt_logprobs or next((each.prompt_logprobs for each in answer.choices), None)
    if found is None or len(found) != len(token_ids):
        raise msgspec.DecodeError("the prompt's log-probabilities are not there")
    return [_of_prompt(token_id, entries or {}) for token_id, entries in zip(token_ids, found, strict=True)]


def _of_prompt(token_id: int, entries: Mapping[str, _PromptEntry]) -> PromptLogprob:
    own = entries.get(str(token_id))
    ranked = sorted((finite(entry.logprob), int(one)) for one, entry in entries.items() if one.isdecimal())
    top = [(one, value) for value, one in reversed(ranked)]
    return PromptLogprob(token_id, None if own is None else finite(own.logprob), top)


def _from_entries(entries: Sequence[_Entry]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            _id_of(entry),
            finite(entry.logprob),
            [(_id_of(other), finite(other.logprob)) for other in entry.top_logprobs],
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


def _id_of(entry: _Entry) -> int:
    return _id(entry.token) if entry.token_id is None else entry.token_id


def _id(token: str) -> int:
    """The id in `token_id:7`. Raises msgspec.DecodeError."""
    digits = token.removeprefix(_BY_ID)
    if digits == token or not digits.isdecimal():
        raise msgspec.DecodeError("a token is not named by its id")
    return int(digits)


def finite(value: float | None) -> float:
    """A log-probability as JSON can say it."""
    return max(value, LEAST) if value is not None and math.isfinite(value) else LEAST
