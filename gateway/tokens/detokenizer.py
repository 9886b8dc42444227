"""Token ids to text, one at a time, without ever giving half a character.

Almost every token is whole UTF-8, so its text is a list lookup. The few others (pieces of a character)
take the slow path until the bytes are whole again.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Any


class TokenTable:
    """Text of every id of a vocabulary; shared by all its detokenizers."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self.text_of: list[str | None] = []
        """Text by id; None where the token's bytes are not UTF-8 by themselves."""
        self.partial: dict[int, bytes] = {}
        """The bytes of those."""
        self.memo: dict[Any, Any] = {}
        """See `parsers.base.Detokenizer`."""
        for token_id, data in enumerate(token_bytes):
            try:
                self.text_of.append(data.decode())
            except UnicodeDecodeError:
                self.text_of.append(None)
                self.partial[token_id] = data

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of an id; none for an id that does not exist."""
        if token_id >= len(self.text_of):
            return b""
        text = self.text_of[token_id]
        return self.partial[token_id] if text is None else text.encode()


class IncrementalDetokenizer:
    """Implements `parsers.base.Detokenizer` for one stream.

    Bytes that can still become a character are held back, at most three. Bytes that no longer can are
    given as U+FFFD in their place; `flush` gives the rest so.
    """

    __slots__ = ("_table", "memo", "pending", "texts")

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self.texts: Sequence[str | None] = table.text_of
        self.memo = table.memo
        self.pending = b""

    def push(self, token_id: int) -> str:
        """Text that became complete with this token; may be empty. An unknown id is no text."""
        if not self.pending:
            try:
                text = self.texts[token_id]
            except IndexError:
                return ""
            if text is not None:
                return text
        data = self.pending + self._table.bytes_of(token_id)
        text, used = utf_8_decode(data, "replace", False)
        self.pending = data[used:]
        return text

    def flush(self) -> str:
        """What is held back, invalid bytes as U+FFFD; the state is as new afterwards."""
        text, _ = utf_8_decode(self.pending, "replace", True)
        self.pending = b""
        return text
