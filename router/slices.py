"""A batch of KV events in slices of bounded work: an event with a million tokens is not applied in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from router.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

SLICE_BLOCKS = 512
"""Most blocks of a slice."""


def slices(events: Sequence[KvEvent]) -> Iterator[list[KvEvent]]:
    """The same events in the same order; those with many blocks as several."""
    part: list[KvEvent] = []
    blocks = 0
    for event in events:
        for piece in _pieces(event):
            size = 1 if isinstance(piece, AllBlocksCleared) else 1 + len(piece.block_hashes)
            if blocks + size > SLICE_BLOCKS and part:
                yield part
                part, blocks = [], 0
            part.append(piece)
            blocks += size
    if part:
        yield part


def _pieces(event: KvEvent) -> Iterator[KvEvent]:
    if isinstance(event, AllBlocksCleared) or len(event.block_hashes) < SLICE_BLOCKS:
        yield event
        return
    step = SLICE_BLOCKS - 1
    for start in range(0, len(event.block_hashes), step):
        blocks = event.block_hashes[start : start + step]
        if isinstance(event, BlockRemoved):
            yield msgspec.structs.replace(event, block_hashes=blocks)
        else:
            yield _stored(event, blocks, start)


def _stored(event: BlockStored, blocks: Sequence[int | bytes], start: int) -> BlockStored:
    """The part of a store that begins at block `start`; tokens that tell no places are not divided."""
    width = 4 * event.block_size
    whole = len(event.token_ids) == width * len(event.block_hashes)
    return msgspec.structs.replace(
        event,
        block_hashes=blocks,
        parent=event.block_hashes[start - 1] if start else event.parent,
        token_ids=event.token_ids[width * start : width * (start + len(blocks))] if whole else b"",
        more=event.more or start + len(blocks) < len(event.block_hashes),
        extras=_from(event.extras, start, len(blocks)),
        following=event.following[4 * event.lookahead * start : 4 * event.lookahead * (start + len(blocks))],
    )


def _from(extras: dict[int, bytes] | None, start: int, count: int) -> dict[int, bytes] | None:
    if extras is None:
        return None
    return {at - start: extra for at, extra in extras.items() if start <= at < start + count} or None
