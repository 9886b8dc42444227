"""Streams and chats for measuring text work, made from a vocabulary's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import msgspec

from gateway.tokens.tokenizer import Tokenizer
from parsers.base import Segment
from parsers.kimi_k3.markers import MARKERS

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
CALL_WORDS = 60
_WORD = re.compile(" [a-z]{2,}")


class Material:
    """What one vocabulary gives."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        texts = tokenizer.detokenizer().texts
        self._words = [token for token, text in enumerate(texts) if text and _WORD.fullmatch(text)]
        self._texts = [texts[token] or "" for token in self._words]
        # A word is as frequent as its place in the vocabulary is low, much as in any language.
        self._weights = list(accumulate(1 / (place + 10) for place in range(len(self._words))))

    def words(self, count: int, seed: int) -> list[int]:
        """Ids of that many words."""
        return Random(seed).choices(self._words, cum_weights=self._weights, k=count)

    def text(self, words: int, random: Random) -> str:
        return "".join(random.choices(self._texts, cum_weights=self._weights, k=words))

    def markup(self, text: str) -> list[int]:
        pieces = re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", text)
        segments = [Segment(piece, piece in MARKERS) for piece in pieces if piece]
        ids: list[int] = self.tokenizer.encode_segments(segments).ids.tolist()
        return ids

    # streams, as a model generates them after an opened think

    def reasoning(self, words: int, seed: int = 1) -> list[int]:
        """That many words of reasoning, and a short answer."""
        return [*self.words(words, seed), *self.markup(_TO_RESPONSE + "Done." + _END)]

    def argument(self, words: int, seed: int = 1) -> list[int]:
        """One call with one string argument of that many words."""
        head = _TO_RESPONSE + "<|close|>response<|sep|><|open|>tools<|sep|>" + _CALL + _STRING
        return [
            *self.markup(head),
            *self.words(words, seed),
            *self.markup(_END_STRING + _END_CALL + _END_TOOLS),
        ]

    def mixed(self, words: int, seed: int = 1) -> list[int]:
        """Half of them reasoning, a quarter content, a quarter in calls of a string and a number."""
        ids = [*self.words(words // 2, seed), *self.markup(_TO_RESPONSE), *self.words(words // 4, -seed)]
        ids += self.markup("<|close|>response<|sep|><|open|>tools<|sep|>")
        head, tail = self.markup(_CALL + _STRING), self.markup(_END_STRING + _NUMBER + _END_CALL)
        for call in range(max(words // 4 // CALL_WORDS, 1)):
            ids += [*head, *self.words(CALL_WORDS, seed * 10_000 + call), *tail]
        return [*ids, *self.markup(_END_TOOLS)]

    # chats

    def chat(self, tokens: int, messages: int, seed: int) -> list[dict[str, Any]]:
        """A conversation of about that many tokens; turns of a user and of a model that thinks."""
        random = Random(seed)
        words = tokens // messages
        chat = [{"role": "system", "content": self.text(words, random)}]
        while len(chat) < messages:
            chat.append({"role": "user", "content": self.text(words, random)})
            answer = {
                "content": self.text(words // 2, random),
                "reasoning_content": self.text(words // 2, random),
            }
            chat.append({"role": "assistant", **answer})
        return chat[:messages]


STREAMS: dict[str, Callable[..., list[int]]] = {
    "reasoning": Material.reasoning,
    "argument": Material.argument,
    "mixed": Material.mixed,
}


def as_received(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as new objects, as a request's body gives them."""
    received: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(messages))
    return received


_TO_RESPONSE = "<|close|>think<|sep|><|open|>response<|sep|>"
_END = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
_CALL = '<|open|>call tool="run" index="1"<|sep|>'
_STRING = '<|open|>argument key="text" type="string"<|sep|>'
_NUMBER = '<|open|>argument key="n" type="number"<|sep|>12<|close|>argument<|sep|>'
_END_STRING = "<|close|>argument<|sep|>"
_END_CALL = "<|close|>call<|sep|>"
_END_TOOLS = "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
