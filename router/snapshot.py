"""What the index knows, kept over a restart of the gateway: (source, sequence, hashes).

A source's part says which batch of its events was the last. After a restart the feed replays from that very
batch on: the same payload there proves the same life, and only then does what was restored count.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from router.events import EngineHash, GroupKind
from router.holdings import Demand, GroupKey, Source
from router.messages import WorkerKey
from router.recipes import RECIPES, Layout
from router.tiers import Tier

VERSION = 1


class SnapshotError(ValueError):
    """Not a snapshot of this version."""


class Position(msgspec.Struct, frozen=True):
    """How far a source's events were applied."""

    sequence: int
    digest: int
    """Of that batch's payload."""


class SavedGroup(msgspec.Struct, array_like=True):
    """One group on one tier."""

    number: int
    tier: int
    kind: GroupKind
    window: int
    window_block: int
    blocks: list[tuple[EngineHash, int | None]]
    """Engine hash and prefix, the oldest first."""
    repeats: list[tuple[EngineHash, int]]


class SavedSource(msgspec.Struct, array_like=True):
    """One rank."""

    key: WorkerKey
    position: Position
    sizes: list[int]
    cuts: list[tuple[int, int]]
    engine: tuple[str, int, int] | None
    """Recipe, unit and block size, where blocks go by the engine's own hashes."""
    loose: int
    groups: list[SavedGroup]


class _Head(msgspec.Struct, array_like=True):
    version: int
    seed: int


class Snapshot(msgspec.Struct):
    """What a file holds."""

    seed: int
    """Of the prefix hashes: a secret, as the file is."""
    sources: dict[WorkerKey, SavedSource]


def saved(source: Source, position: Position) -> SavedSource:
    """A copy of what a source holds."""
    engine = source.engine
    return SavedSource(
        source.key,
        position,
        sorted(source.sizes),
        sorted(source.cuts),
        None if engine is None else (engine.layout.recipe.name, engine.layout.unit, engine.block_size),
        source.loose,
        [
            SavedGroup(
                number,
                tier,
                group.group_class.demand.kind,
                group.group_class.demand.window,
                group.group_class.demand.block_size,
                list(group.held.items()),
                list(group.repeats.items()),
            )
            for (number, tier), group in source.groups.items()
        ],
    )


def layout_of(engine: tuple[str, int, int]) -> Layout | None:
    """The layout that a saved source names; None when no such recipe is known any more."""
    name, unit, _ = engine
    return next((Layout(recipe, unit) for recipe in RECIPES if recipe.name == name), None)


def demand_of(group: SavedGroup) -> tuple[GroupKey, Demand]:
    tier = Tier(group.tier)
    return (group.number, tier), Demand(group.kind, group.window, group.window_block, tier)


def head(seed: int) -> bytes:
    """The beginning of a file; the parts of the sources follow in any order."""
    return _framed(msgspec.msgpack.encode(_Head(VERSION, seed)))


def part(source: Source, position: Position) -> bytes:
    """One source's part of a file."""
    return _framed(msgspec.msgpack.encode(saved(source, position)))


def decode(raw: bytes) -> Snapshot:
    """Raises SnapshotError."""
    try:
        parts = list(_frames(raw))
        head = msgspec.msgpack.decode(parts[0], type=_Head)
        if head.version != VERSION:
            raise SnapshotError(f"version {head.version}, not {VERSION}")
        sources = [msgspec.msgpack.decode(part, type=SavedSource) for part in parts[1:]]
    except (msgspec.MsgspecError, IndexError) as error:
        raise SnapshotError(str(error)) from error
    return Snapshot(head.seed, {source.key: source for source in sources})


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part


def _frames(raw: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(raw):
        end = start + 8 + int.from_bytes(raw[start : start + 8], "big")
        if end > len(raw):
            raise SnapshotError("cut off")
        yield raw[start + 8 : end]
        start = end
