"""What one worker's cache holds, by its own block hashes; the index's bookkeeping for one source of events.

A source has KV cache groups. Groups that ask the same of a prefix form a class, and a class counts a block as
held when each of its groups holds it. Each class writes the source's bit into one table, shared by all
sources: prefix hash -> bit mask of sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from router.ends import RequestEnds
from router.events import BlockStored, EngineHash, GroupKind
from router.evidence import HitRule
from router.messages import WorkerKey
from router.recipes import Layout
from router.tiers import Tier

K = TypeVar("K")
Table = dict[int, int]
"""Prefix hash -> bit mask of the sources that hold that block."""


class Demand(NamedTuple):
    """What a class of groups asks of a prefix, beside attention's "every block"."""

    kind: GroupKind
    window: int = 0
    """Tokens of a sliding window; 0 for a state at the prefix's very end."""
    block_size: int = 0
    """Of the window's blocks, in tokens."""
    tier: Tier = Tier.DEVICE
    """Where the blocks are."""

    def span(self, block_size: int) -> int:
        """Blocks in a row, of `block_size` tokens, that must be held at a prefix's end.

        The token to compute next is the window's own, so the others must be cached. A group whose blocks are
        larger than the attention's has hashes only at some of its boundaries: there the last one must do.
        """
        if not self.window or self.block_size > block_size:
            return 1
        return max(1, -(-(self.window - 1) // block_size))


Rule = frozenset[Demand]
GroupKey = tuple[int, Tier]
"""A group by its number, and one tier of it."""
ATTENTION = Demand(GroupKind.ATTENTION)


class EngineBlocks(NamedTuple):
    """How a source's blocks lie on the engine's own chain."""

    layout: Layout
    block_size: int
    """Of attention's whole blocks, in tokens; a multiple of the layout's unit."""


class Group:
    """One KV cache group: which engine hashes it holds, how often, and which prefix each names."""

    __slots__ = ("group_class", "held", "repeats")

    def __init__(self, group_class: GroupClass) -> None:
        self.group_class = group_class
        self.held: dict[EngineHash, int | None] = {}
        """Engine hash -> prefix hash; None while no attention event has told which prefix it names."""
        self.repeats: dict[EngineHash, int] = {}
        """Copies beyond the first: a hash stored three times needs three removals."""


class GroupClass:
    """The groups of one source that ask the same of a prefix."""

    __slots__ = ("demand", "groups", "same_prefix", "table")

    def __init__(self, demand: Demand, table: Table) -> None:
        self.demand = demand
        self.table = table
        self.groups: list[Group] = []
        self.same_prefix: dict[int, int] = {}
        """Prefix hash -> further engine hashes that name it (an engine may tell look-alike prompts apart)."""

    def complete(self, block: EngineHash) -> bool:
        """Whether every group of the class holds the block."""
        return all(block in group.held for group in self.groups)

    def mark(self, prefix: int, bit: int) -> None:
        """One more complete engine hash names `prefix`."""
        mask = self.table.get(prefix, 0)
        if mask & bit:
            self.same_prefix[prefix] = self.same_prefix.get(prefix, 0) + 1
        else:
            self.table[prefix] = mask | bit

    def unmark(self, prefix: int, bit: int) -> None:
        """One fewer does."""
        further = self.same_prefix.get(prefix, 0)
        if further > 1:
            self.same_prefix[prefix] = further - 1
        elif further:
            del self.same_prefix[prefix]
        else:
            unset(self.table, prefix, bit)


def unset(masks: dict[K, int], key: K, bit: int) -> None:
    """Clear a bit in a map of masks; a key whose mask is empty leaves."""
    mask = masks.get(key, 0) & ~bit
    if mask:
        masks[key] = mask
    else:
        masks.pop(key, None)


class Source:
    """One worker rank as the index sees it. Each life has its own bit, so that old marks are void at once."""

    __slots__ = (
        "bit",
        "blocks",
        "classes",
        "cuts",
        "discount",
        "ends",
        "engine",
        "failed_tests",
        "groups",
        "hit_rule",
        "key",
        "life",
        "loose",
        "pending",
        "pending_bytes",
        "samples",
        "sizes",
        "waiting",
    )

    def __init__(self, key: WorkerKey, bit: int) -> None:
        self.key = key
        self.life = 0
        """Counts lives: bits are used again."""
        self.hit_rule = HitRule.STATE
        """Written by the index's `follow` alone."""
        self.discount = 1.0
        """Share of the attention that counts under `HitRule.DISCOUNT`."""
        self.ends: RequestEnds | None = None
        """Kept for engines that announce no states and tell finishes apart."""
        self.begin(bit)

    def begin(self, bit: int) -> None:
        """Start a life that holds nothing."""
        self.bit = bit
        self.life += 1
        self.blocks = 0
        """Entries over all groups."""
        self.groups: dict[GroupKey, Group] = {}
        self.classes: dict[Demand, GroupClass] = {}
        self.sizes: set[int] = set()
        """Block sizes seen from attention groups, in tokens."""
        self.cuts: set[tuple[int, int]] = set()
        """(Block size, lookahead) of blocks whose hash covers tokens after them."""
        self.waiting: set[EngineHash] = set()
        """Blocks whose prefix is not known yet."""
        self.samples: list[BlockStored] = []
        """Stores at prompts' starts, one block each: they tell how the engine hashes once that is asked."""
        self.failed_tests = 0
        self.pending: dict[EngineHash, list[BlockStored]] = {}
        """Stores whose parent is not placed, by that parent, the oldest first."""
        self.pending_bytes = 0
        self.engine: EngineBlocks | None = None
        """Set where blocks go by the engine's own hashes, because tokens cannot place them all."""
        self.loose = 0
        """Blocks that tokens could not place when they came."""
        if self.ends is not None:
            self.ends = self.ends.renewed()

    @property
    def rule(self) -> Rule:
        """The state classes that a prefix must satisfy; empty for attention alone."""
        return frozenset(
            demand for demand in self.classes if demand.kind is GroupKind.STATE and not demand.tier
        )

    @property
    def hashing(self) -> str:
        """What its blocks are placed by."""
        return "tokens" if self.engine is None else f"engine hashes ({self.engine.layout})"

    @property
    def problem(self) -> str:
        """Why its blocks are not all placed; empty when they are."""
        if not self.loose or not self.waiting:
            return ""
        why = "are not of a known recipe" if self.failed_tests else "could not be tested yet"
        if self.cuts:
            why = "cover tokens after each block, which no recipe does"
        return (
            f"{len(self.waiting)} blocks cannot be placed: what they continue was not announced, "
            f"and its hashes {why}"
        )

    @property
    def mostly_lost(self) -> bool:
        """Whether more blocks cannot be placed than can."""
        return 2 * len(self.waiting) > self.blocks

    def prefix_of(self, block: EngineHash) -> int | None:
        """The prefix that an engine hash names, if any group holds it and it is placed."""
        for group in self.groups.values():
            prefix = group.held.get(block)
            if prefix is not None:
                return prefix
        return None

    def add_group(self, key: GroupKey, group_class: GroupClass) -> Group:
        """A further group in a class voids the marks of blocks that it does not hold: all of them."""
        for sibling in group_class.groups[:1]:
            for block, prefix in sibling.held.items():
                if prefix is not None and group_class.complete(block):
                    unset(group_class.table, prefix, self.bit)
        group_class.same_prefix.clear()
        group = self.groups[key] = Group(group_class)
        group_class.groups.append(group)
        return group

    def hold(self, group: Group, block: EngineHash, prefix: int | None) -> None:
        """Record the first copy of a block in a group."""
        group.held[block] = prefix
        self.blocks += 1
        group_class = group.group_class
        if prefix is None:
            self.waiting.add(block)
        elif len(group_class.groups) == 1 or group_class.complete(block):
            group_class.mark(prefix, self.bit)

    def hold_chain(self, group: Group, blocks: Sequence[EngineHash], prefixes: Sequence[int]) -> int:
        """`hold` for many blocks of a class's only group; answers how many were held already."""
        held, table, bit = group.held, group.group_class.table, self.bit
        holders = table.get
        repeats = 0
        for block, prefix in zip(blocks, prefixes, strict=True):
            if block in held:
                group.repeats[block] = group.repeats.get(block, 0) + 1
                repeats += 1
                continue
            held[block] = prefix
            mask = holders(prefix)
            if mask is None:
                table[prefix] = bit  # the one object, however many blocks the source holds alone
            elif mask & bit:
                group.group_class.mark(prefix, bit)
            else:
                table[prefix] = mask | bit
        self.blocks += len(blocks) - repeats
        return repeats

    def settle(self, block: EngineHash, prefix: int) -> None:
        """An attention event told which prefix a waiting state block names."""
        self.waiting.discard(block)
        settled: set[int] = set()
        for group in self.groups.values():
            if block in group.held and group.held[block] is None:
                group.held[block] = prefix
                group_class = group.group_class
                if id(group_class) not in settled and group_class.complete(block):
                    settled.add(id(group_class))
                    group_class.mark(prefix, self.bit)

    def release(self, group: Group, block: EngineHash) -> bool:
        """Record the removal of one copy; False when the group does not hold the block."""
        copies = group.repeats.get(block)
        if copies is not None:
            if copies > 1:
                group.repeats[block] = copies - 1
            else:
                del group.repeats[block]
            return True
        if block not in group.held:
            return False
        self.forget(group, block)
        return True

    def postpone(self, event: BlockStored, limit: int) -> None:
        """Keep a store until its parent is placed; `limit` bounds the bytes of all such, the oldest go."""
        assert event.parent is not None
        self.pending.setdefault(event.parent, []).append(event)
        self.pending_bytes += len(event.token_ids)
        while self.pending_bytes > limit:
            self.take_pending(next(iter(self.pending)))

    def take_pending(self, parent: EngineHash) -> list[BlockStored]:
        """The stores that go on from `parent`; they are kept no longer."""
        events = self.pending.pop(parent, [])
        self.pending_bytes -= sum(len(event.token_ids) for event in events)
        return events

    def forget(self, group: Group, block: EngineHash) -> None:
        """Drop a block that the group holds, with all its copies."""
        group_class = group.group_class
        complete = len(group_class.groups) == 1 or group_class.complete(block)
        prefix = group.held.pop(block)
        group.repeats.pop(block, None)
        self.blocks -= 1
        if prefix is None:
            if not any(block in other.held for other in self.groups.values()):
                self.waiting.discard(block)
        elif complete:
            group_class.unmark(prefix, self.bit)
            if self.ends is not None and not group_class.demand.tier:
                self.ends.drop(prefix, self.bit)


class LostLife:
    """What a cleared or removed source held: marks that are void and still have to leave the tables."""

    __slots__ = ("_groups", "bit", "size")

    def __init__(self, source: Source) -> None:
        self.bit = source.bit
        self.size = source.blocks
        self._groups: list[tuple[Table, dict[Any, int | None] | dict[Any, int]]] = [
            (group.group_class.table, group.held) for group in source.groups.values()
        ]
        if source.ends is not None:
            self.size += len(source.ends.marks)
            self._groups.append((source.ends.table, source.ends.marks))

    def sweep(self, budget: int) -> int:
        """Clear up to `budget` marks; answers how many it did. `size` counts what is left."""
        done = 0
        while self._groups and done < budget:
            table, held = self._groups[-1]
            while held and done < budget:
                _, prefix = held.popitem()
                done += 1
                if prefix is not None:
                    unset(table, prefix, self.bit)
            if not held:
                self._groups.pop()
        self.size -= done
        return done
