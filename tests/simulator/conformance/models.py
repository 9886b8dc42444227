"""The recorded models' tokenizers and chat templates, as far as the recorded requests need them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiktoken

from parsers.base import Chat, Detokenizer, EncodedChat, OutputEvent, OutputOptions, OutputParser, Segment
from parsers.kimi_k3.markers import CLOSE_ID, OPEN_ID, SEP_ID, STOP_IDS
from parsers.kimi_k3.parser import KimiK3Parser
from parsers.plain import PlainParser
from simulator.tokens import Tokens

KIMI_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


class IdVocabulary:
    """Ids without texts, for scenarios that only speak ids."""

    size = 2048

    def encode_text(self, text: str) -> Sequence[int]:
        return [0]

    def control_id(self, text: str) -> int:
        raise KeyError(text)

    def token_bytes(self) -> list[bytes]:
        return [b"x"] * self.size


class BpeVocabulary:
    """A byte-level `tokenizer.json`."""

    def __init__(self, path: Path, eos: str) -> None:
        """`eos` is also known as [EOS], by which the worker looks for the tokenizer's own end."""
        read = json.loads(path.read_bytes())
        self._special: dict[str, int] = {entry["content"]: entry["id"] for entry in read["added_tokens"]}
        self._special["[EOS]"] = self._special[eos]
        to_byte = _bytes_of_characters()
        self._ranks = {
            bytes(to_byte[character] for character in spelling): rank
            for spelling, rank in read["model"]["vocab"].items()
            if spelling not in self._special
        }
        self._encoding = tiktoken.Encoding(
            path.parent.name, pat_str=PATTERN, mergeable_ranks=self._ranks, special_tokens={}
        )
        self.size = len(read["model"]["vocab"])

    def encode_text(self, text: str) -> Sequence[int]:
        return self._encoding.encode_ordinary(text)

    def control_id(self, text: str) -> int:
        return self._special[text]

    def token_bytes(self) -> list[bytes]:
        table = [b""] * self.size
        for spelling, token_id in self._special.items():
            if spelling != "[EOS]":
                table[token_id] = spelling.encode()
        for spelling_, rank in self._ranks.items():
            table[rank] = spelling_
        return table


class RanksVocabulary:
    """A `tiktoken.model` with a few control tokens after it."""

    def __init__(self, path: Path) -> None:
        lines = [line.split() for line in path.read_bytes().splitlines()]
        self._ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        names = ("[BOS]", "[END]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[PAD]", "[UNK]")
        self._special = {name: len(self._ranks) + place for place, name in enumerate(names)}
        self._encoding = tiktoken.Encoding(
            path.parent.name, pat_str=KIMI_PATTERN, mergeable_ranks=self._ranks, special_tokens={}
        )
        self.size = len(self._ranks) + len(names)

    def encode_text(self, text: str) -> Sequence[int]:
        return self._encoding.encode_ordinary(text)

    def control_id(self, text: str) -> int:
        return self._special["<|end_of_msg|>" if text == "[EOS]" else text]

    def token_bytes(self) -> list[bytes]:
        by_rank = {rank: spelling for spelling, rank in self._ranks.items()}
        by_rank |= {rank: name.encode() for name, rank in self._special.items()}
        return [by_rank[rank] for rank in range(self.size)]


class ImFormat:
    """`<|im_start|>role`, newline, text, `<|im_end|>`, newline; no markup in outputs."""

    name = family = "im"
    kv_shape = None
    stop_token_ids: Sequence[int] = (2,)

    def encode(self, chat: Chat) -> EncodedChat:
        segments: list[Segment] = []
        for message in chat.messages:
            segments += _im(message["role"], _text(message["content"]))
        if chat.tools:
            segments += _im("tools", json.dumps(list(map(_dumped, chat.tools)), ensure_ascii=False))
        return EncodedChat(
            [*segments, Segment("<|im_start|>", True), Segment("assistant\n", False)], False, 0
        )

    def parser(self, options: OutputOptions, detokenizer: Detokenizer) -> OutputParser:
        return PlainParser(detokenizer, self.stop_token_ids)

    def load_vocabulary(self, ranks: bytes | None = None) -> Any:
        raise NotImplementedError


class SmallKimiFormat:
    """K3's markup with other ids and a template of a few lines."""

    name = family = "small_kimi"
    kv_shape = None

    def __init__(self, ids: Sequence[int], *, tools_first: bool) -> None:
        """`ids` of open, close, sep and the end of a message."""
        self.stop_token_ids: Sequence[int] = ids[3:]
        self._ids = dict(zip(ids, (OPEN_ID, CLOSE_ID, SEP_ID, STOP_IDS[0]), strict=True))
        self._tools_first = tools_first

    def encode(self, chat: Chat) -> EncodedChat:
        thinking = chat.template_kwargs.get("thinking", True)
        said = [
            _open("message", message["role"]) + _closed(_text(message["content"]))
            for message in chat.messages
        ]
        if chat.tools:
            tools = json.dumps(list(map(_dumped, chat.tools)), ensure_ascii=False)
            said.insert(0 if self._tools_first else len(said), _open("message", "tools") + _closed(tools))
        stub = _open("message", "assistant") + _open("think" if thinking else "response")
        return EncodedChat([*(segment for one in said for segment in one), *stub], thinking, 0, chat.tools)

    def parser(self, options: OutputOptions, detokenizer: Detokenizer) -> OutputParser:
        return _TranslatedParser(options, detokenizer, self._ids)

    def load_vocabulary(self, ranks: bytes | None = None) -> Any:
        raise NotImplementedError


class _TranslatedParser(KimiK3Parser):
    """K3's parser for a model whose markers have other ids."""

    def __init__(self, options: OutputOptions, detokenizer: Detokenizer, ids: dict[int, int]) -> None:
        super().__init__(options, detokenizer)
        self._ids = ids

    def feed(self, token_ids: Sequence[int]) -> list[OutputEvent]:
        return list(super().feed([self._ids.get(token_id, token_id) for token_id in token_ids]))


def ids_only() -> Tokens:
    """For scenarios without text."""
    return Tokens(ImFormat(), IdVocabulary())


def tiny(models: Path) -> Tokens:
    """The model of the HTTP scenarios."""
    return Tokens(ImFormat(), BpeVocabulary(models / "tiny/tokenizer.json", "<|im_end|>"))


def tiny_kimi(models: Path) -> Tokens:
    """The model of the scenarios with vLLM's kimi_k3 parsers."""
    vocabulary = BpeVocabulary(models / "tiny-kimi/tokenizer.json", "<|end_of_msg|>")
    return Tokens(SmallKimiFormat((5, 6, 7, 8), tools_first=False), vocabulary)


def tiny_kimi_tiktoken(models: Path) -> Tokens:
    """The same markup over a `tiktoken.model`."""
    vocabulary = RanksVocabulary(models / "tiny-kimi-tt/tiktoken.model")
    ids = [vocabulary.control_id(name) for name in ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")]
    return Tokens(SmallKimiFormat(ids, tools_first=True), vocabulary)


def _im(role: str, text: str) -> list[Segment]:
    return [
        Segment("<|im_start|>", True),
        Segment(f"{role}\n{text}", False),
        Segment("<|im_end|>", True),
        Segment("\n", False),
    ]


def _open(tag: str, role: str | None = None) -> list[Segment]:
    text = tag if role is None else f'{tag} role="{role}"'
    return [Segment("<|open|>", True), Segment(text, False), Segment("<|sep|>", True)]


def _closed(text: str) -> list[Segment]:
    return [
        Segment(text, False),
        Segment("<|close|>", True),
        Segment("message", False),
        Segment("<|sep|>", True),
    ]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _dumped(tool: Any) -> dict[str, Any]:
    """A tool as vLLM hands it to the template: with the fields of its schema, given or not."""
    function = {"name": None, "description": None, "parameters": None} | tool["function"]
    return {"type": tool["type"], "function": function}


def _bytes_of_characters() -> dict[str, int]:
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {
        chr(0x100 + place): byte for place, byte in enumerate(hidden)
    }
