"""Log-probabilities of tokens in OpenAI's two shapes: entries of a chat, parallel lists of a completion."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from gateway.serving.token_watch import TokenDetail


def chat_entry(token: TokenDetail, alternatives: int) -> dict[str, Any]:
    """An entry of `logprobs.content`. A token that is no whole characters has its exact bytes alone."""
    top = [_entry(spelling, value) for spelling, value in token.top[:alternatives]]
    return _entry(token.spelling, token.logprob) | {"top_logprobs": top}


def _entry(spelling: bytes, value: float | None) -> dict[str, Any]:
    return {"token": spelling.decode("utf-8", "replace"), "logprob": value, "bytes": list(spelling)}


def covering(tokens: Sequence[TokenDetail], text: str) -> Sequence[TokenDetail]:
    """The last of the tokens, as many as spell the text: markers come before what they mark."""
    missing = len(text.encode("utf-8", "replace"))
    first = len(tokens)
    while missing > 0 and first > 0:
        first -= 1
        missing -= len(tokens[first].spelling)
    return tokens[first:]


class CompletionLogprobs:
    """Lists for one choice; offsets are in characters of its text, control tokens as they are spelled."""

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._offset = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[str] = []
        self._values: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add(self, token: TokenDetail) -> None:
        self._tokens.append(_name(token.spelling))
        self._values.append(token.logprob)
        top = {_name(spelling): value for spelling, value in token.top[: self._alternatives]}
        if token.logprob is not None:
            top.setdefault(self._tokens[-1], token.logprob)
        self._tops.append(top or None)
        self._offsets.append(self._offset)
        self._offset += len(self._decoder.decode(token.spelling))

    def take(self) -> dict[str, Any]:
        """What was added since the last time."""
        taken = {
            "tokens": self._tokens,
            "token_logprobs": self._values,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }
        self._clear()
        return taken


def _name(spelling: bytes) -> str:
    """A token as a key: one that is no whole characters is spelled by its bytes."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelling)
