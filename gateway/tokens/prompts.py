"""A prompt as token ids, in the forms that its way to a worker needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from router.hashing import HashMemo

_CHUNK = 8_192
"""Ids that are spelled at once: few enough for the processor's cache, and for other threads to get a turn."""


class EncodedPrompt:
    """A prompt's token ids. The text for a worker's body is joined when it is first asked for."""

    __slots__ = ("_json", "_parts", "hashes", "ids")

    def __init__(
        self, ids: NDArray[np.uint32], ids_json: bytes | Sequence[bytes], hashes: HashMemo | None = None
    ) -> None:
        """`ids` are routed by. `ids_json` may come in parts: they are comma-joined, empty ones left out."""
        self.ids = ids
        self.hashes = hashes
        """What the router has hashed of this prompt's beginning, for it to go on from."""
        self._json = ids_json if isinstance(ids_json, bytes) else None
        self._parts = () if isinstance(ids_json, bytes) else ids_json

    def __repr__(self) -> str:
        return f"<EncodedPrompt {len(self.ids)} ids>"

    @property
    def ids_json(self) -> bytes:
        """The ids in decimal, comma-joined, without brackets."""
        if self._json is None:
            self._json = b",".join([part for part in self._parts if part])
            self._parts = ()
        return self._json

    def id_list(self) -> list[int]:
        """The ids as a worker gets them."""
        return msgspec.json.decode(b"[" + self.ids_json + b"]", type=list[int])


@cache
def speller(vocabulary_size: int) -> Speller:
    """The one for a vocabulary of that size; its table is shared."""
    return Speller(vocabulary_size)


class Speller:
    """Spells many ids in decimal by table, at a quarter of the cost of making a list and encoding it."""

    def __init__(self, vocabulary_size: int) -> None:
        # Each id's digits and a comma, padded with zero bytes to a machine word; then what ends a run.
        rows = [*(b"%d," % number for number in range(vocabulary_size)), b";"]
        self._rows = np.array(rows, "S8").view(np.uint64)
        self._end = np.array([vocabulary_size], np.uint32)

    def spell(self, runs: Sequence[NDArray[np.uint32]]) -> list[bytes]:
        """The ids of each run, comma-joined."""
        ids = np.concatenate([part for run in runs for part in (run, self._end)])
        chunks = (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
        text = b"".join([self._rows[chunk].tobytes().translate(None, b"\0") for chunk in chunks])
        return [spelled[:-1] for spelled in text.split(b";")[:-1]]
