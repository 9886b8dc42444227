"""Where blocks are: on the device, in host memory or on disk. A prefix may be in several places by turns."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from router.hits import Chain, Depth, Marks


class Tier(IntEnum):
    """The lower, the slower."""

    DEVICE = 0
    HOST = 1
    DISK = 2


MEDIA: dict[str | None, Tier] = {
    None: Tier.DEVICE,
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "DISK": Tier.DISK,
    "STORAGE": Tier.DISK,
}
"""By the names in events. What is elsewhere (`EXTERNAL`, or remote) belongs to nobody: it is not indexed."""


class AnyOf:
    """Several tables as one: a block is held where any of them says so."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Sequence[Marks]) -> None:
        self._tables = tables

    def get(self, key: int, default: int = 0) -> int:
        mask = default
        for table in self._tables:
            mask |= table.get(key, 0)
        return mask


def contiguous_anywhere(chain: Chain, table: Marks, mask: int) -> list[Depth]:
    """As `hits.contiguous`, block by block: tiers evict by themselves, so holes are to be expected."""
    found: list[Depth] = []
    depth = 0
    while mask:
        if depth == len(chain.hashes) and not chain.grow():
            break
        still = mask & table.get(chain.hashes[depth], 0)
        if still != mask and depth:
            found.append((depth, mask ^ still))
        mask = still
        depth += 1
    if mask and depth:
        found.append((depth, mask))
    found.reverse()
    return found
