"""What both indexes are given: raw KV event payloads as vLLM sends them, and prompts. The same for a seed.

Runs in a peer's environment too: nothing of the router is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCK = 64
HOT_BLOCKS = 32
"""Of each prompt that every worker holds (2k tokens)."""
HOLDERS = 8
"""Workers that hold more, each its own share of the prompt, one all of it."""
PROMPTS = {1_024: 4, 8_192: 4, 65_536: 2, 1_048_576: 1}
"""Length in tokens: prompts of that length."""
BACKGROUND = 100
BACKGROUND_BLOCKS = 1_000
CONVERSATION = 128
"""Blocks of the conversations of events, a quarter of them shared by all."""
_LARGEST_EVENT = 512

Tokens = NDArray[np.uint32]


class Event(NamedTuple):
    worker: int
    payload: bytes


class Prompt(NamedTuple):
    tokens: Tokens
    """One more than its whole blocks, for an engine always computes the last."""
    depths: dict[int, int]
    """Blocks that each worker holds."""


class Material:
    """For one number of workers."""

    def __init__(self, workers: int, seed: int = 7) -> None:
        self._workers = workers
        self._random = np.random.default_rng(seed)
        self.prompts: dict[int, list[Prompt]] = {}

    def load(self) -> Iterator[Event]:
        """Events after which the prompts are held as they say, among much else."""
        for length, count in PROMPTS.items():
            self.prompts[length] = []
            for _ in range(count):
                yield from self._held_prompt(length)
        for number in range(BACKGROUND):
            tokens, hashes = self._tokens(BACKGROUND_BLOCKS), self._hashes(BACKGROUND_BLOCKS)
            yield from self._chain(number % self._workers, tokens, hashes, _LARGEST_EVENT)

    def _held_prompt(self, length: int) -> Iterator[Event]:
        blocks = length // BLOCK
        hot = min(blocks, HOT_BLOCKS)
        tokens, hashes = self._tokens(blocks), self._hashes(blocks)
        depths = dict.fromkeys(range(self._workers), hot)
        holders = self._random.permutation(self._workers)[:HOLDERS].tolist()
        for number, worker in enumerate(holders, 1):
            depths[worker] = max(hot, blocks * number // len(holders))
        for worker, depth in depths.items():
            yield from self._chain(worker, tokens[: depth * BLOCK], hashes[:depth], _LARGEST_EVENT)
        self.prompts[length].append(Prompt(np.append(tokens, np.uint32(1)), depths))

    def conversations(self, blocks: int, per_event: int) -> Iterator[Event]:
        """Conversations of so many blocks in all, a few blocks at a time, on one worker after another."""
        shared = CONVERSATION // 4
        head, head_hashes = self._tokens(shared), self._hashes(shared)
        for number in range(blocks // CONVERSATION):
            tokens = np.concatenate([head, self._tokens(CONVERSATION - shared)])
            hashes = head_hashes + self._hashes(CONVERSATION - shared)
            worker = number % self._workers
            self.last = Prompt(np.append(tokens, np.uint32(1)), {worker: CONVERSATION})
            yield from self._chain(worker, tokens, hashes, per_event)

    def _tokens(self, blocks: int) -> Tokens:
        return self._random.integers(0, 160_000, blocks * BLOCK, dtype=np.uint32)

    def _hashes(self, blocks: int) -> list[int]:
        hashes: list[int] = self._random.integers(1 << 62, (1 << 63) - 1, blocks, dtype=np.int64).tolist()
        return hashes

    def _chain(self, worker: int, tokens: Tokens, hashes: Sequence[int], per_event: int) -> Iterator[Event]:
        ids = tokens.tolist()
        for start in range(0, len(hashes), per_event):
            stop = min(start + per_event, len(hashes))
            parent = hashes[start - 1] if start else None
            yield Event(worker, stored(hashes[start:stop], parent, ids[start * BLOCK : stop * BLOCK]))


def stored(hashes: Sequence[int], parent: int | None, ids: Sequence[int], **fields: object) -> bytes:
    """One published batch with one store, in the layout of vLLM 0.32."""
    event = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "mla_attention",
        **fields,
    }
    return msgspec.msgpack.encode([1.5, [event], 0])


def removed(hashes: Sequence[int], **fields: object) -> bytes:
    """One published batch with one removal."""
    event = {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0, **fields}
    return msgspec.msgpack.encode([1.5, [event], 0])
