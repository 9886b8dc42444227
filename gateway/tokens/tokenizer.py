"""A model's tokenizer as the service uses it: prompts to id buffers, ids to text."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.tokens.detokenizer import IncrementalDetokenizer, TokenTable
from gateway.tokens.prefixes import Prefixes
from gateway.tokens.prompts import EncodedPrompt, speller
from gateway.tokens.segment_cache import EncodedSegment, SegmentCache
from parsers.base import ModelFormat, Piece, Segment, SegmentRun, Vocabulary

FILE_NAME = "tiktoken.model"
DEFAULT_CACHE_BYTES = 256 * 1024 * 1024
LONG_CHARS = 16_000
"""More text than this is worth keeping joined, and a thread: it costs about a millisecond to tokenize."""
_TABLE_IDS = 256
"""From this many ids on they are quicker to spell by table."""
_ENCODE_IDS = msgspec.json.Encoder().encode


class TokenizerError(Exception):
    """A tokenizer cannot be loaded, or was asked for ids that it does not have."""


class Tokenizer:
    """One vocabulary with its segment cache and text table. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.vocabulary = vocabulary
        self.cache = SegmentCache(cache_bytes)
        self.prefixes = Prefixes(cache_bytes // 2)
        self._speller = speller(vocabulary.size)
        self._table = TokenTable(vocabulary.token_bytes())

    @classmethod
    def load(
        cls,
        model_format: ModelFormat,
        directory: str | Path | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> Tokenizer:
        """The tokenizer in a directory that holds a `tiktoken.model`; None is the small one in the package.

        Raises TokenizerError when the file cannot be read or is not a vocabulary of this format.
        """
        if directory is None:
            return cls(model_format.load_vocabulary(), cache_bytes)
        path = Path(directory, FILE_NAME)
        try:
            return cls(model_format.load_vocabulary(path.read_bytes()), cache_bytes)
        except OSError as error:
            raise TokenizerError(f"cannot read the tokenizer {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise TokenizerError(f"{path} is not a vocabulary of {model_format.name}: {error}") from error

    def encode_segments(self, pieces: Sequence[Piece]) -> EncodedPrompt:
        """Ids of a prompt; each segment is encoded alone.

        A long one is kept joined, and goes on from what is kept. Raises TokenizerError for a control segment
        that the vocabulary does not have.
        """
        if not is_long(pieces):
            parts = self._parts(pieces)
            ids = b"".join([part[0] for part in parts])
            return EncodedPrompt(np.frombuffer(ids, dtype=np.uint32), [part[1] for part in parts])
        found, shared = self.prefixes.find(pieces)
        return self.prefixes.join(found, shared, pieces, self._parts(pieces[shared:]))

    def encode_text(self, text: str) -> NDArray[np.uint32]:
        """Ids of plain text, as a completion's prompt is: control spellings in it stay text."""
        return self.encode_segments([Segment(text, False)]).ids

    def prompt_of_ids(self, ids: Sequence[int]) -> EncodedPrompt:
        """A prompt that came as ids. Raises TokenizerError when one is no id of this vocabulary."""
        size = self.vocabulary.size
        if not set(map(type, ids)) <= {int}:
            raise TokenizerError("a token id is not an integer")
        if len(ids) and not (min(ids) >= 0 and max(ids) < size):
            raise TokenizerError(f"a token id is outside 0..{size - 1}")
        part = _entry(ids)
        return EncodedPrompt(np.frombuffer(part.ids, dtype=np.uint32), part.json)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, control tokens as they are spelled, bytes that are no character as U+FFFD."""
        detokenizer = self.detokenizer()
        return "".join([*map(detokenizer.push, ids), detokenizer.flush()])

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes; none for an id that does not exist."""
        return self._table.bytes_of(token_id)

    def detokenizer(self) -> IncrementalDetokenizer:
        """A new detokenizer for one stream."""
        return IncrementalDetokenizer(self._table)

    def _parts(self, pieces: Sequence[Piece]) -> list[EncodedSegment]:
        found = self.cache.find(pieces)
        missing = [piece for piece, part in zip(pieces, found, strict=True) if part is None]
        texts = dict.fromkeys(text for text, is_fixed in missing if not is_fixed)
        made = dict(zip(texts, self._encode_texts(list(texts)), strict=True)) if texts else {}
        return [
            part or (self._fixed(piece) if piece[1] else made[piece[0]])
            for part, piece in zip(found, pieces, strict=True)
        ]

    def _fixed(self, piece: Piece) -> EncodedSegment:
        if isinstance(piece, SegmentRun):
            parts = self._parts(piece.segments)
            part = EncodedSegment(
                b"".join(part.ids for part in parts), b",".join(part.json for part in parts)
            )
        else:
            try:
                part = _entry([self.vocabulary.control_id(piece.text)])
            except KeyError:
                raise TokenizerError(f"the vocabulary has no control token {piece.text}") from None
        self.cache.pin(piece[0], part)
        return part

    def _encode_texts(self, texts: Sequence[str]) -> list[EncodedSegment]:
        ids = list(map(self.vocabulary.encode_text, texts))
        if sum(map(len, ids)) < _TABLE_IDS:
            parts = list(map(_entry, ids))
        else:
            arrays = list(map(_array, ids))
            spelled = self._speller.spell(arrays)
            parts = [EncodedSegment(each.tobytes(), json) for each, json in zip(arrays, spelled, strict=True)]
        for text, part in zip(texts, parts, strict=True):
            self.cache.put(text, part)
        return parts


def _array(ids: Sequence[int]) -> NDArray[np.uint32]:
    """A list by way of a C array, which reads it several times as fast as numpy."""
    return ids if isinstance(ids, np.ndarray) else np.frombuffer(array("I", ids), np.uint32)


def _entry(ids: Sequence[int]) -> EncodedSegment:
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    return EncodedSegment(array("I", ids).tobytes(), _ENCODE_IDS(ids)[1:-1])


def is_long(pieces: Sequence[Piece]) -> bool:
    """Whether a prompt's text has more than LONG_CHARS characters."""
    characters = 0
    for text, is_fixed in pieces:
        if not is_fixed:
            characters += len(text)
            if characters > LONG_CHARS:
                return True
    return False
