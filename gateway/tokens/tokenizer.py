"""A model's tokenizer as the service uses it: prompts to id buffers, ids to text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.tokens.detokenizer import IncrementalDetokenizer, TokenTable
from gateway.tokens.segment_cache import EncodedSegment, SegmentCache
from parsers.base import ModelFormat, Segment, Vocabulary

FILE_NAME = "tiktoken.model"
DEFAULT_CACHE_BYTES = 256 * 1024 * 1024
# Making JSON holds the GIL: in pieces, another thread gets its turn within a millisecond or so.
_JSON_CHUNK = 16_384


class TokenizerError(Exception):
    """A tokenizer cannot be loaded, or was asked for ids that it does not have."""


class EncodedPrompt(NamedTuple):
    """A prompt's token ids, in the two forms that its way to a worker needs."""

    ids: NDArray[np.uint32]
    ids_json: bytes
    """The ids in decimal, comma-joined, without brackets."""


class Tokenizer:
    """One vocabulary with its segment cache and text table. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.vocabulary = vocabulary
        self.cache = SegmentCache(cache_bytes)
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

    def encode_segments(self, segments: Sequence[Segment]) -> EncodedPrompt:
        """Ids of a prompt; each segment is encoded alone.

        Raises TokenizerError for a control segment that the vocabulary does not have.
        """
        found = self.cache.find(segments)
        parts = [part or self._encode(*segment) for part, segment in zip(found, segments, strict=True)]
        return _join(parts)

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
        return _join([_segment_of(ids)])

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, control tokens as they are spelled, bytes that are no character as U+FFFD."""
        detokenizer = self.detokenizer()
        return "".join([*map(detokenizer.push, ids), detokenizer.flush()])

    def detokenizer(self) -> IncrementalDetokenizer:
        """A new detokenizer for one stream."""
        return IncrementalDetokenizer(self._table)

    def _encode(self, text: str, is_control: bool) -> EncodedSegment:
        if not is_control:
            part = _segment_of(self.vocabulary.encode_text(text))
            self.cache.put(text, part)
            return part
        try:
            part = _segment_of([self.vocabulary.control_id(text)])
        except KeyError:
            raise TokenizerError(f"the vocabulary has no control token {text}") from None
        self.cache.pin(text, part)
        return part


def _segment_of(ids: Sequence[int]) -> EncodedSegment:
    array = np.asarray(ids, dtype=np.uint32)
    chunks = (array[start : start + _JSON_CHUNK] for start in range(0, len(array), _JSON_CHUNK))
    return EncodedSegment(
        array.tobytes(), b",".join(msgspec.json.encode(chunk.tolist())[1:-1] for chunk in chunks)
    )


def _join(parts: Sequence[EncodedSegment]) -> EncodedPrompt:
    # By index, which is faster than by name: prompts of ten thousand segments are common.
    ids = b"".join([part[0] for part in parts])
    return EncodedPrompt(
        np.frombuffer(ids, dtype=np.uint32), b",".join([part[1] for part in parts if part[1]])
    )
