"""The worker's tokenizer: a format's vocabulary, with the way back to text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from parsers.base import ModelFormat, OutputOptions, Segment, Vocabulary
from parsers.plain import PlainParser
from parsers.registry import get_format

RANKS_FILE = "tiktoken.model"
EOS = "[EOS]"
HALF = "\ufffd"
"""What broken or half characters become."""


class Tokens:
    """Text to ids and ids to text."""

    def __init__(self, model_format: ModelFormat, vocabulary: Vocabulary) -> None:
        self.model_format = model_format
        self.end_id = model_format.stop_token_ids[0]
        self.end_ids = frozenset(model_format.stop_token_ids)
        self.size = vocabulary.size
        self._vocabulary = vocabulary
        self._bytes = vocabulary.token_bytes()
        self.eos_id = self.control(EOS)
        """The tokenizer's own end: a generation that ends with it has no stop_reason."""
        options, text = OutputOptions(thinking=False), TextStream(self, skip_special=True)
        self.marked_up = not isinstance(model_format.parser(options, text), PlainParser)
        """Whether outputs have reasoning and tool calls in them."""

    @classmethod
    def load(cls, format_name: str, directory: str | None) -> Tokens:
        """The named format with the ranks in `directory`. Raises KeyError, OSError or ValueError."""
        model_format = get_format(format_name)
        ranks = None if directory is None else (Path(directory) / RANKS_FILE).read_bytes()
        return cls(model_format, model_format.load_vocabulary(ranks))

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text."""
        return [int(token_id) for token_id in self._vocabulary.encode_text(text)]

    def encode_segments(self, segments: Iterable[Segment]) -> list[int]:
        """Ids of a prompt's pieces; each is encoded alone."""
        ids: list[int] = []
        for text, is_control in segments:
            ids += [self._vocabulary.control_id(text)] if is_control else self.encode(text)
        return ids

    def control(self, spelling: str) -> int | None:
        """Id of a control token; None when the vocabulary has no such token."""
        try:
            return self._vocabulary.control_id(spelling)
        except KeyError:
            return None

    def is_control(self, token_id: int) -> bool:
        """Whether the id is a control token."""
        return self.control(self._bytes[token_id].decode("utf-8", "replace")) == token_id

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes; a control token's spelling."""
        return self._bytes[token_id]

    def text(self, ids: Iterable[int]) -> str:
        """Text of whole ids; broken bytes as U+FFFD."""
        return b"".join(map(self._bytes.__getitem__, ids)).decode("utf-8", "replace")

    def first_outside(self, ids: Sequence[int]) -> int | None:
        """The first id that the vocabulary does not have."""
        if max(ids, default=0) < self.size and min(ids, default=0) >= 0:
            return None
        return next(token_id for token_id in ids if not 0 <= token_id < self.size)


class _NotById(Sequence[str | None]):
    """No text by id alone: what a token shows depends on what came before it."""

    def __getitem__(self, index: Any) -> Any:
        return None

    def __len__(self) -> int:
        return 0


_NOT_BY_ID = _NotById()


class StopHold:
    """Text up to a stop string: what could begin one is held back until that is settled."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._most = max(map(len, stop), default=1) - 1
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> str:
        """Text that is certain now."""
        if not self._stop:
            return text
        if self._stopped:
            return ""
        whole = self._held + text
        found = [place for stop in self._stop if (place := whole.find(stop)) >= 0]
        if found:
            self._stopped, self._held = True, ""
            return whole[: min(found)]
        keep = len(whole) - min(self._most, len(whole))
        self._held = whole[keep:]
        return whole[:keep]

    def flush(self) -> str:
        """What is held back."""
        rest, self._held = self._held, ""
        return rest


class TextStream:
    """Ids of one choice to text, token by token; a `parsers.base.Detokenizer`.

    A character comes out when its last byte is in; bytes that make none wait for the next token, and at the
    end of an output they are gone. The end token never becomes text; other control tokens do unless
    `skip_special`. Text from a stop string on is left out.
    """

    def __init__(self, tokens: Tokens, *, skip_special: bool, stop: Sequence[str] = ()) -> None:
        self._tokens = tokens
        self._skip_special = skip_special
        self._hold = StopHold(stop)
        self.texts: Sequence[str | None] = _NOT_BY_ID
        self.memo: dict[Any, Any] = {}
        self.pending = b""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if not self._hidden(token_id):
            self.pending += self._tokens.bytes_of(token_id)
        text = self.pending.decode("utf-8", "replace")
        if text.endswith(HALF):
            return ""
        self.pending = b""
        return self._hold.push(text)

    def flush(self) -> str:
        """What is held back, invalid bytes as U+FFFD."""
        rest, self.pending = self._hold.flush() + self.pending.decode("utf-8", "replace"), b""
        return rest

    def steps(self, ids: Iterable[int], *, last: bool) -> str:
        """Text of a step's tokens; with the last one comes what was held back."""
        text = "".join(map(self.push, ids))
        if not last:
            return text
        self.pending = b""
        return text + self.flush()

    def _hidden(self, token_id: int) -> bool:
        if token_id in self._tokens.end_ids:
            return True
        return self._skip_special and self._tokens.is_control(token_id)
