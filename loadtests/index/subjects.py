"""The two indexes behind one interface, each fed with what it takes naturally."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from loadtests.index.material import BLOCK, Tokens


class Subject(Protocol):
    """An index of blocks of `BLOCK` tokens for workers 0 to n - 1."""

    def store(self, worker: int, payload: bytes) -> None:
        """From the bytes of a published batch."""

    def settle(self) -> None:
        """Until all that was stored is found."""

    def prompt(self, tokens: Tokens) -> Any:
        """A prompt in the form in which it would be at hand."""

    def find(self, prompt: Any) -> Any:
        """What each worker holds, in the index's own form."""

    def depths(self, found: Any) -> dict[int, int]:
        """The same as blocks by worker, for those with any."""


class Kvgateway:
    """Ours: tokens are an array."""

    def __init__(self, workers: int) -> None:
        from router.events import decode_batch
        from router.hashing import PrefixHasher
        from router.index import PrefixIndex
        from router.messages import WorkerKey

        self._decode = decode_batch
        self._index = PrefixIndex(PrefixHasher(5), max_blocks=1 << 40)
        self._sources = [self._index.open(WorkerKey(str(number))) for number in range(workers)]
        self.find = self._index.find

    def store(self, worker: int, payload: bytes) -> None:
        self._index.apply(self._sources[worker], self._decode(payload).events)

    def settle(self) -> None:
        pass

    def prompt(self, tokens: Tokens) -> Tokens:
        return tokens

    def depths(self, found: Any) -> dict[int, int]:
        return {int(source.key.worker): tokens // BLOCK for source, tokens in found.items()}


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int]


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed]


class Dynamo:
    """Through its Python API: tokens are a list; events are JSON with hashes that the caller has computed."""

    def __init__(self, workers: int) -> None:
        from dynamo.llm import (  # type: ignore[import-not-found]
            RadixTree,
            compute_block_hash_for_seq,
        )

        self._tree = RadixTree()
        self._hash: Callable[[list[int], int], list[int]] = compute_block_hash_for_seq
        self._decode = msgspec.msgpack.Decoder(_Batch).decode
        self._encode = msgspec.json.Encoder().encode
        self._events = 0

    def store(self, worker: int, payload: bytes) -> None:
        for event in self._decode(payload).events:
            self._events += 1
            if isinstance(event, _Removed):
                data: dict[str, Any] = {"removed": {"block_hashes": event.block_hashes}}
                self._tree.apply_event(worker, self._encode(self._told(data)))
                continue
            tokens = self._hash(event.token_ids, event.block_size)
            pairs = zip(event.block_hashes, tokens, strict=True)
            blocks = [{"block_hash": block, "tokens_hash": local} for block, local in pairs]
            data = {"stored": {"parent_hash": event.parent_block_hash, "blocks": blocks}}
            self._tree.apply_event(worker, self._encode(self._told(data)))

    def _told(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"event_id": self._events, "data": data, "dp_rank": 0}

    def settle(self) -> None:
        self._tree.find_matches([1])

    def prompt(self, tokens: Tokens) -> list[int]:
        ids: list[int] = tokens.tolist()
        return ids

    def find(self, prompt: list[int]) -> Any:
        return self._tree.find_matches(self._hash(prompt, BLOCK)).scores

    def depths(self, found: Any) -> dict[int, int]:
        return {worker: blocks for (worker, _), blocks in found.items()}


SUBJECTS: dict[str, Callable[[int], Subject]] = {"kvgateway": Kvgateway, "dynamo": Dynamo}
