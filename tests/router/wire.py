"""Recorded ZeroMQ traffic and short ways to write events.

A `.frames` file is a sequence of multipart messages: u32 number of frames, then u32 length and bytes of each,
big-endian. `data/` has a few of a larger collection, which lies beside the repository or nowhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from router.events import BlockRemoved, BlockStored, EngineHash, GroupKind, KvEvent, decode_batch
from router.messages import TokenIds
from router.tiers import Tier

DATA = Path(__file__).parent / "data"
CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures"


def captures() -> Path:
    """The whole collection; skips the test where it is absent."""
    if not CAPTURES.is_dir():
        pytest.skip(f"recorded traffic is not at {CAPTURES}")
    return CAPTURES


def read_frames(path: Path) -> list[list[bytes]]:
    """The multipart messages of one file."""
    raw = path.read_bytes()
    offset = 0

    def take(size: int) -> bytes:
        nonlocal offset
        offset += size
        return raw[offset - size : offset]

    messages = []
    while offset < len(raw):
        (count,) = struct.unpack(">I", take(4))
        messages.append([take(struct.unpack(">I", take(4))[0]) for _ in range(count)])
    return messages


def recorded_events(path: Path) -> list[KvEvent]:
    """All events of one file, in order."""
    payloads = [message[-1] for message in read_frames(path) if message[-1]]
    return [event for payload in payloads for event in decode_batch(payload).events]


def payload(*events: Any, timestamp: float = 1.5) -> bytes:
    return msgspec.msgpack.encode([timestamp, list(events), 0])


def tokens(ids: Iterable[int]) -> TokenIds:
    return np.fromiter(ids, dtype=np.uint32)


def stored(
    hashes: Sequence[EngineHash], ids: Iterable[int] = (), parent: EngineHash | None = None, **fields: Any
) -> BlockStored:
    """Blocks of two tokens in an attention group, unless `fields` say otherwise."""
    fields.setdefault("block_size", 2)
    return BlockStored(block_hashes=hashes, token_ids=tokens(ids).tobytes(), parent=parent, **fields)


def state(hashes: Sequence[EngineHash], group: int = 1, window: int = 0, block_size: int = 2) -> BlockStored:
    """States (or window blocks) of a state group."""
    kind = GroupKind.STATE
    return stored(hashes, group=group, kind=kind, window=window, block_size=block_size)


def removed(hashes: Sequence[EngineHash], group: int = 0, tier: Tier | None = Tier.DEVICE) -> BlockRemoved:
    return BlockRemoved(block_hashes=hashes, group=group, tier=tier)
