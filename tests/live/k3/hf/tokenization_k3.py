"""A Hugging Face tokenizer of the K3 vocabulary, so that a real engine has one: it runs inside the engine."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, ClassVar

import tiktoken
from transformers import PreTrainedTokenizer

BASE = 163_584
SIZE = 163_840
NAMED = {
    "[BOS]": 163584,
    "[EOS]": 163585,
    "<|end_of_msg|>": 163586,
    "<|open|>": 163587,
    "<|close|>": 163588,
    "<|sep|>": 163589,
    "[PAD]": 163839,
    "[UNK]": 163838,
}
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _spellings() -> dict[int, str]:
    """A printable character for each byte, as byte-level vocabularies spell them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


SPELLING = _spellings()
BYTE = {character: byte for byte, character in SPELLING.items()}


class K3Tokenizer(PreTrainedTokenizer):
    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "tiktoken.model"}
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file: str, **options: Any) -> None:
        lines = (line.split() for line in Path(vocab_file).read_bytes().splitlines())
        ranks = {base64.b64decode(piece): int(rank) for piece, rank in lines}
        free = {f"<|reserved_token_{slot}|>": slot for slot in range(BASE, SIZE)}
        taken = set(NAMED.values())
        self.controls = NAMED | {name: slot for name, slot in free.items() if slot not in taken}
        self.model = tiktoken.Encoding(
            "k3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.controls
        )
        self.spelled = {slot: "".join(SPELLING[byte] for byte in piece) for piece, slot in ranks.items()}
        self.spelled |= {slot: name for name, slot in self.controls.items()}
        self.slots = {spelled: slot for slot, spelled in self.spelled.items()}
        options.pop("added_tokens_decoder", None)
        own = {
            "bos_token": "[BOS]",
            "eos_token": "<|end_of_msg|>",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
        }
        super().__init__(**{**options, **own})

    @property
    def vocab_size(self) -> int:
        return SIZE

    def get_vocab(self) -> dict[str, int]:
        return dict(self.slots)

    def encode(self, text: str, add_special_tokens: bool = True, **_: Any) -> list[int]:
        return self.model.encode(text, allowed_special="all", disallowed_special=())

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [self.spelled[slot] for slot in self.encode(text)]

    def _convert_token_to_id(self, token: str) -> int:
        return self.slots.get(token, NAMED["[UNK]"])

    def _convert_id_to_token(self, index: int) -> str:
        return self.spelled[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        pieces = (
            token.encode() if token in self.controls else bytes(BYTE[each] for each in token)
            for token in tokens
        )
        return b"".join(pieces).decode("utf-8", "replace")
