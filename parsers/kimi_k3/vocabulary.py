"""The Kimi-K3 tokenizer: ranks from a `tiktoken.model` file, control tokens at fixed ids, two cutting rules.

The split pattern, the control ids and the cutting rules are constants of the model and decide the ids;
only the merge ranks come from a file. A small file with the same shape ships in the package, so that
everything but the ids of ordinary text is exact without the real one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import chain

import numpy as np
import tiktoken

from parsers.kimi_k3.markers import FIRST_CONTROL_ID

SIZE = 163_840
SPLIT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

_NAMED_CONTROLS = {
    163_584: "[BOS]",
    163_585: "[EOS]",
    163_586: "<|end_of_msg|>",
    163_587: "<|open|>",
    163_588: "<|close|>",
    163_589: "<|sep|>",
    163_590: "[start_header_id]",
    163_591: "[end_header_id]",
    163_593: "[EOT]",
    163_602: "<|media_begin|>",
    163_603: "<|media_content|>",
    163_604: "<|media_end|>",
    163_605: "<|media_pad|>",
    163_649: "<osagent_mode>",
    163_838: "[UNK]",
    163_839: "[PAD]",
}
# An unnamed slot's name carries its absolute id.
CONTROL_IDS: dict[str, int] = {
    _NAMED_CONTROLS.get(slot, f"<|reserved_token_{slot}|>"): slot for slot in range(FIRST_CONTROL_ID, SIZE)
}

_CUT_CHARS = 400_000
_RUN_CHARS = 25_000
# Anchored at the start of a run: without that, a run just under the limit costs its length squared.
_LONG_RUN = re.compile(rf"(?<!\s)\s{{{_RUN_CHARS + 1},}}|(?<!\S)\S{{{_RUN_CHARS + 1},}}")
_ARRAY_CHARS = 500
"""From this length on `encode_text` gives an array; below it a list is quicker to make."""


class KimiK3Vocabulary:
    """Implements `parsers.base.Vocabulary`. Safe to use from several threads; tiktoken frees the GIL."""

    size = SIZE

    def __init__(self, ranks: bytes) -> None:
        """`ranks` are the bytes of a `tiktoken.model`. Raises ValueError when they are not one."""
        self._ranks = parse_ranks(ranks)
        # tiktoken never encodes a control token here, but searches long text for all that it knows: one,
        # because it needs one, takes half the time of 256.
        self._encoding = tiktoken.Encoding(
            "kimi_k3",
            pat_str=SPLIT_PATTERN,
            mergeable_ranks=self._ranks,
            special_tokens={"[BOS]": FIRST_CONTROL_ID},
        )

    def encode_text(self, text: str) -> Sequence[int]:
        """Ids of ordinary text; control spellings in it stay text. A numpy uint32 array when long."""
        if len(text) < _ARRAY_CHARS:
            return self._encoding.encode_ordinary(text)
        try:
            arrays = [self._encoding.encode_to_numpy(part, disallowed_special=()) for part in cut(text)]
        except UnicodeEncodeError:
            # As tiktoken does for short text: a lone surrogate becomes U+FFFD.
            return self.encode_text(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        # An array serves wherever the protocol's callers index, iterate or measure.
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)  # type: ignore[return-value]

    def control_id(self, text: str) -> int:
        """Id of a control token. Raises KeyError."""
        return CONTROL_IDS[text]

    def token_bytes(self) -> list[bytes]:
        """Bytes of each id; control tokens give their spelling, unused slots b""."""
        table = [b""] * SIZE
        for piece, rank in self._ranks.items():
            table[rank] = piece
        for name, slot in CONTROL_IDS.items():
            table[slot] = name.encode()
        return table


def parse_ranks(data: bytes) -> dict[bytes, int]:
    """Ranks of a `tiktoken.model` file: lines of base64, a space, the rank. Raises ValueError."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            piece, rank = line.split()
            ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"line {number} is not a base64 token and a rank") from error
    _check_ranks(ranks)
    return ranks


def _check_ranks(ranks: dict[bytes, int]) -> None:
    used = set(ranks.values())
    if len(used) != len(ranks):
        raise ValueError("two tokens have the same rank")
    if used and not (min(used) >= 0 and max(used) < FIRST_CONTROL_ID):
        raise ValueError(f"a rank is outside 0..{FIRST_CONTROL_ID - 1}, where control ids begin")
    if missing := 256 - sum(bytes([byte]) in ranks for byte in range(256)):
        raise ValueError(f"{missing} of the 256 single bytes have no rank")


def cut(text: str) -> Iterator[str]:
    """The pieces that are tokenized apart: at most 400,000 characters, no run above 25,000.

    A run is of whitespace or of non-whitespace. The rules belong to the model: they change ids.
    """
    if len(text) <= _RUN_CHARS:
        return iter((text,) if text else ())
    starts = range(0, len(text), _CUT_CHARS)
    return chain.from_iterable(_cut_runs(text[start : start + _CUT_CHARS]) for start in starts)


def _cut_runs(text: str) -> Iterator[str]:
    start = 0
    for run in _LONG_RUN.finditer(text) if _may_have_long_run(text) else ():
        for end in range(run.start() + _RUN_CHARS, run.end(), _RUN_CHARS):
            yield text[start:end]
            start = end
    yield text[start:]


def _may_have_long_run(text: str) -> bool:
    """Every long run fills an aligned block of half its length, and a block is quick to judge."""
    size = _RUN_CHARS // 2
    blocks = (text[start : start + size] for start in range(0, len(text) - size + 1, size))
    return any(block.isspace() or block.split(maxsplit=1) == [block] for block in blocks)


def small_ranks() -> bytes:
    """The `tiktoken.model` in the package, made by `scripts/make_small_vocabulary.py`."""
    return resources.files("parsers.kimi_k3").joinpath("small/tiktoken.model").read_bytes()
