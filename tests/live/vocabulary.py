"""K3's vocabulary and the little of its prompt grammar that the live lane needs, without the product's code.

It is the other side of the comparison: the gateway's encoder must give the ids that `user_prompt` gives.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import tiktoken

CONTROL = {
    "<|end_of_msg|>": 163586,
    "<|open|>": 163587,
    "<|close|>": 163588,
    "<|sep|>": 163589,
}
STUB = 3
"""Tokens of the opened response element, which the vendor's API does not count."""
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_TAIL}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_TAIL}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
THINK_END = "<|close|>think<|sep|>"
MESSAGE_END = "<|close|>message<|sep|><|end_of_msg|>"


@cache
def encoding(directory: Path) -> tiktoken.Encoding:
    lines = (directory / "tiktoken.model").read_text().splitlines()
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in lines)}
    return tiktoken.Encoding("k3-live", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=CONTROL)


class Vocabulary:
    """Text with markers to ids and back."""

    def __init__(self, directory: Path) -> None:
        self._encoding = encoding(directory)

    def script(self, text: str) -> list[int]:
        """Ids of model output, markers as control tokens."""
        return self._encoding.encode(text, allowed_special="all")

    def ordinary(self, text: str) -> list[int]:
        """Ids of text; markers in it are spelled."""
        return self._encoding.encode_ordinary(text)

    def text(self, ids: Sequence[int]) -> str:
        """What ids without markers say; bytes that are no UTF-8 become replacement characters."""
        return b"".join(self._encoding.decode_tokens_bytes(list(ids))).decode("utf-8", "replace")

    def user_prompt(self, text: str) -> list[int]:
        """The prompt of a single user message with thinking off, segment by segment."""
        ids: list[int] = []
        for segment in (*_opening("message", role="user"), "<|sep|>"):
            ids += self.script(segment)
        ids += self._encoding.encode_ordinary(text)
        for segment in ("<|close|>", "message", "<|sep|>", "<|end_of_msg|>"):
            ids += self.script(segment)
        for segment in (*_opening("message", role="assistant"), "<|sep|>", "<|open|>", "response", "<|sep|>"):
            ids += self.script(segment)
        return ids


def _opening(name: str, **attributes: str) -> list[str]:
    """The segments of an opening tag up to its separator; an attribute is four of them."""
    segments = ["<|open|>", name]
    for key, value in attributes.items():
        segments += [f" {key}", '="', value, '"']
    return segments


def answer(reasoning: str, content: str) -> str:
    """Model output (after the opened think element) of a plain answer."""
    return f"{reasoning}{THINK_END}<|open|>response<|sep|>{content}<|close|>response<|sep|>{MESSAGE_END}"


def tool_answer(reasoning: str, content: str, name: str, arguments: dict[str, object]) -> str:
    """Model output that ends in one tool call."""
    body = "".join(_argument(key, value) for key, value in arguments.items())
    call = f'<|open|>call tool="{name}" index="1"<|sep|>{body}<|close|>call<|sep|>'
    return (
        f"{reasoning}{THINK_END}<|open|>response<|sep|>{content}<|close|>response<|sep|>"
        f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>{MESSAGE_END}"
    )


def _argument(key: str, value: object) -> str:
    kinds = {str: "string", int: "number", bool: "boolean", list: "array", dict: "object"}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    head = f'<|open|>argument key="{key}" type="{kinds[type(value)]}"<|sep|>'
    return f"{head}{text}<|close|>argument<|sep|>"
