"""The prefix index: which worker holds how much of a prompt.

Events name blocks by the engine's own hashes; requests bring tokens. Both are mapped to the router's prefix
hashes (`hashing`), so one table per kind of KV group answers for all workers at once (`lookup`): prefix hash
-> bit mask of sources. Where tokens cannot place a worker's blocks, its own hashes do (`recipes`).

A hit on a hybrid model needs every group: the deepest block where attention is contiguous and each state
group holds that very block (or, for a sliding window, the window's last blocks).

A source that is cleared or removed gets a new bit, which voids its marks at once; they are swept later, a few
with each applied event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from router.ends import RequestEnds
from router.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, GroupKind, KvEvent
from router.evidence import HitRule
from router.hashing import HashMemo, PrefixChain, PrefixHasher, extend_hashes
from router.holdings import (
    ATTENTION,
    Demand,
    EngineBlocks,
    Group,
    GroupClass,
    GroupKey,
    Source,
    unset,
)
from router.lives import Lives
from router.lookahead import extras_with
from router.lookup import Lookup, Match
from router.messages import TokenIds, WorkerKey
from router.recipes import Layout, identify, key_of
from router.snapshot import SavedSource, demand_of, layout_of
from router.tiers import Tier

_STATE, _IGNORED = GroupKind.STATE, GroupKind.IGNORED  # names that are quicker to look up
_MAX_SIZES = 4
"""Block sizes believed of one source; each costs every lookup a chain of its own."""
_SWEEP_STRIDE = 64
_EVICTION_SHARE = 64
_PENDING_BYTES = 1 << 22
"""Of token ids that a source's stores with an unknown parent may keep (a million tokens)."""
_UNSIGNED = 64
"""Blocks after which an engine without a negative hash is one whose hashes are unsigned."""
_SELF_TESTS = 3
"""Stores at a prompt's start that may fail to show how an engine hashes before it counts as unknown."""


class IndexStats(msgspec.Struct):
    """Counters since the start, and sizes now."""

    blocks: int = 0
    """(source, group, block) entries; what the cap bounds."""
    prefixes: int = 0
    sources: int = 0
    swept_later: int = 0
    """Entries of lost lives that still wait for the sweep."""
    stored: int = 0
    removed: int = 0
    repeats: int = 0
    """Stores of a block that the group held already."""
    orphans: int = 0
    """Attention blocks that came without anything to tell which prefix they continue."""
    unplaced: int = 0
    """Blocks whose prefix nothing has told yet."""
    unknown_removed: int = 0
    elsewhere: int = 0
    """Events about blocks that belong to no worker."""
    odd_sizes: int = 0
    """Stores left out because of their block size."""
    clears: int = 0
    evictions: int = 0
    """Entries given up for the memory cap."""


class PrefixIndex:
    """Blocks by prefix for any number of sources. Not thread-safe; no call blocks."""

    def __init__(self, hasher: PrefixHasher, max_blocks: int = 4_000_000) -> None:
        """`max_blocks` bounds the entries (about 200 bytes each)."""
        self._hasher = hasher
        self._max_blocks = max_blocks
        self._lookup = lookup = Lookup(hasher)
        # The lookup's tables, which events fill.
        self._attention = lookup.attention
        self._tables = lookup.tables
        self._sizes = lookup.sizes
        self._engines = lookup.engines
        self._ends = lookup.ends
        self._lives = Lives(lookup)
        self._sources: set[Source] = set()
        self._blocks = 0
        self._counts = IndexStats()

    def open(self, key: WorkerKey) -> Source:
        """Begin a source; the handle goes to `apply`, `clear` and `close`."""
        source = Source(key, self._lives.new_bit())
        self._lives.begin(source)
        self._sources.add(source)
        return source

    def close(self, source: Source) -> None:
        """Forget a source and all that it holds, at once."""
        self._sources.discard(source)
        self._retire(source)

    def clear(self, source: Source) -> None:
        """The source holds nothing now; it goes on."""
        self._counts.clears += 1
        if source.groups:
            self._retire(source)
            source.begin(self._lives.new_bit())
            self._lives.begin(source)

    def apply(self, source: Source, events: Iterable[KvEvent]) -> None:
        """Take in events in the order they were published."""
        for event in events:
            if isinstance(event, BlockStored):
                self._store(source, event)
            elif isinstance(event, BlockRemoved):
                self._remove(source, event)
            elif isinstance(event, AllBlocksCleared):
                self.clear(source)
            self._lives.sweep(_SWEEP_STRIDE)
        self._cap()

    def find(
        self,
        tokens: TokenIds,
        cache_salt: str | None = None,
        lora: str | None = None,
        memo: HashMemo | None = None,
    ) -> dict[Source, int]:
        """Usable cached tokens of a prompt by source; sources without any are absent.

        At most the whole blocks of all tokens but the last, which an engine always computes. Raises TypeError
        when the tokens are not uint32.
        """
        return self.match(tokens, cache_salt, lora, memo).usable

    def match(
        self,
        tokens: TokenIds,
        cache_salt: str | None = None,
        lora: str | None = None,
        memo: HashMemo | None = None,
    ) -> Match:
        """As `find`, with what every hit rule says."""
        return self._lookup.match(tokens, cache_salt, lora, memo)

    def chain(
        self,
        tokens: TokenIds,
        block_size: int,
        cache_salt: str | None = None,
        lora: str | None = None,
        memo: HashMemo | None = None,
    ) -> PrefixChain:
        """The prefixes of a prompt's whole blocks."""
        return PrefixChain(tokens, block_size, self._hasher.root(cache_salt, lora), memo=memo)

    def assume(self, source: Source, block_size: int, prefixes: Sequence[int]) -> None:
        """Take the source, of which no event tells, to hold these blocks too."""
        group = self._group(source, (0, Tier.DEVICE), ATTENTION)
        self._learn_size(source, block_size)
        before = source.blocks
        for prefix in prefixes:
            if prefix not in group.held:
                source.hold(group, prefix, prefix)
        self._count_stored(source.blocks - before)
        self._cap()

    def unassume(self, source: Source, prefixes: Iterable[int]) -> None:
        """Take it not to hold them any more."""
        group = source.groups[0, Tier.DEVICE]
        before = source.blocks
        for prefix in prefixes:
            source.release(group, prefix)
        self._blocks -= before - source.blocks

    def restore(self, source: Source, saved: SavedSource) -> bool:
        """Take the source, which holds nothing, to hold what was saved of it; False when that is unknown."""
        layout = None if saved.engine is None else layout_of(saved.engine)
        if saved.engine is not None and layout is None:
            return False
        for size in saved.sizes:
            self._learn_size(source, size)
        for size, lookahead in saved.cuts:
            self._learn_size(source, size, lookahead)
        if saved.engine is not None and layout is not None:
            source.engine = EngineBlocks(layout, saved.engine[2])
            self._engines[source.engine] = self._engines.get(source.engine, 0) | source.bit
        source.loose = saved.loose
        groups = [(self._group(source, *demand_of(each)), each) for each in saved.groups]
        for group, each in groups:
            group.repeats = dict(each.repeats)
            for block, prefix in each.blocks:
                source.hold(group, block, prefix)
        self._blocks += source.blocks
        self._cap()
        return True

    def follow(self, source: Source, rule: HitRule) -> None:
        """From now on the source's hits are predicted by this rule."""
        self._lives.follow(source, rule)

    def keep_ends(self, source: Source) -> None:
        """Note where requests end on the source, before its events show that they tell."""
        if source.ends is None:
            source.ends = RequestEnds(self._ends)

    def finish(self, source: Source, prefix: int) -> None:
        """A prompt with these blocks has been computed."""
        if source.ends is not None and self._attention.get(prefix, 0) & source.bit:
            source.ends.mark(prefix, source.bit)

    def sweep(self, budget: int) -> None:
        """Clear up to `budget` marks of lost lives."""
        self._lives.sweep(budget)

    def stats(self) -> IndexStats:
        """A copy of the counters with the sizes of now."""
        return msgspec.structs.replace(
            self._counts,
            blocks=self._blocks,
            prefixes=len(self._attention),
            sources=len(self._sources),
            swept_later=self._lives.unswept,
            unplaced=sum(len(source.waiting) for source in self._sources),
        )

    def _retire(self, source: Source) -> None:
        self._blocks -= source.blocks
        self._lives.end(source)

    # Events

    def _group(self, source: Source, key: GroupKey, demand: Demand) -> Group:
        known = source.groups.get(key)
        if known is not None:
            return known
        before = source.rule
        group_class = self._class(source, demand)
        self._lives.regroup(source, before)
        return source.add_group(key, group_class)

    def _class(self, source: Source, demand: Demand) -> GroupClass:
        group_class = source.classes.get(demand)
        if group_class is None:
            table = self._tables.setdefault(demand, {})
            group_class = source.classes[demand] = GroupClass(demand, table)
            if demand.tier:
                tiered = self._lookup.tiered
                tiered[demand.tier] = tiered.get(demand.tier, 0) | source.bit
        return group_class

    def _store(self, source: Source, event: BlockStored) -> None:
        if event.kind is _IGNORED:
            return
        if event.tier is None:
            self._counts.elsewhere += 1
            return
        group = source.groups.get((event.group, event.tier))
        if group is None:
            demand = Demand(event.kind, event.window, event.block_size if event.window else 0, event.tier)
            group = self._group(source, (event.group, event.tier), demand)
        if source.engine is not None:
            self._store_by_key(source, group, event)
        elif event.kind is _STATE or not event.block_hashes or (event.tier and not event.token_ids):
            self._store_by_value(source, group, event.block_hashes)
        else:
            self._store_attention(source, group, event)

    def _store_attention(self, source: Source, group: Group, event: BlockStored) -> None:
        """By its tokens where these tell its place; else by the engine's hashes, if it can be had."""
        size = event.block_size
        whole = len(event.token_ids) == 4 * len(event.block_hashes) * size
        root = self._root_of(source, event) if whole else None
        if whole and event.parent is None and len(source.samples) + source.failed_tests < _SELF_TESTS:
            self._keep_sample(source, event)
        odd = source.sizes and size not in source.sizes and not event.lookahead
        if not event.tier and (root is None or source.loose or odd):
            layout = self._identified(source)
            if layout is not None:
                group = self._use_engine_hashes(source, layout, event)
                self._store_by_key(source, group, event)
                return
        if root is not None:
            self._store_chain(source, group, event, root)
            return
        self._store_by_value(source, group, event.block_hashes)
        if whole:
            source.postpone(event, _PENDING_BYTES)

    def _root_of(self, source: Source, event: BlockStored) -> int | None:
        """The prefix that the store goes on from; None when nothing has told it."""
        if event.parent is None:
            return self._hasher.root(event.cache_salt, event.lora)
        return source.prefix_of(event.parent)

    # The engine's own hashes: computed for prompts in their place when tokens cannot place every block

    def _keep_sample(self, source: Source, event: BlockStored) -> None:
        if not event.extras and event.lora is None and not event.lookahead:
            first, ids = event.block_hashes[:1], event.token_ids[: 4 * event.block_size]
            source.samples.append(msgspec.structs.replace(event, block_hashes=first, token_ids=ids))

    def _identified(self, source: Source) -> Layout | None:
        while source.samples:
            layout = identify(source.samples[0])
            if layout is not None:
                return layout
            source.samples.pop(0)
            source.failed_tests += 1
        return None

    def _use_engine_hashes(self, source: Source, layout: Layout, event: BlockStored) -> Group:
        """Go over to the engine's hashes, with all that is held; answers the event's group."""
        groups = [(key, each, dict(each.held)) for key, each in source.groups.items()]
        sizes = source.sizes
        self._retire(source)
        source.begin(self._lives.new_bit())
        source.engine = EngineBlocks(layout, max(sizes, default=layout.unit))
        self._engines[source.engine] = self._engines.get(source.engine, 0) | source.bit
        for key, old, _ in groups:
            group_class = self._class(source, old.group_class.demand)
            source.add_group(key, group_class).repeats = old.repeats
        self._lives.begin(source)
        for key, _, held in groups:
            group = source.groups[key]
            for block in held:
                source.hold(group, block, key_of(block, layout.recipe.published))
        self._blocks += source.blocks
        assert event.tier is not None
        return source.groups[event.group, event.tier]

    def _store_by_key(self, source: Source, group: Group, event: BlockStored) -> None:
        engine = source.engine
        assert engine is not None
        size = event.block_size
        if event.kind is GroupKind.ATTENTION and size > engine.block_size and size % engine.layout.unit == 0:
            unset(self._engines, engine, source.bit)
            engine = source.engine = EngineBlocks(engine.layout, size)
            self._engines[engine] = self._engines.get(engine, 0) | source.bit
        published = engine.layout.recipe.published
        before = source.blocks
        for block in event.block_hashes:
            if block in group.held:
                self._repeat(group, block)
            else:
                source.hold(group, block, key_of(block, published))
        self._count_stored(source.blocks - before)
        if source.ends is not None and event.block_hashes and not event.tier and not event.more:
            source.ends.mark(key_of(event.block_hashes[-1], published), source.bit)

    def _store_by_value(self, source: Source, group: Group, blocks: Sequence[EngineHash]) -> None:
        """Blocks whose place in the prompt only another group's event can tell."""
        before = source.blocks
        for block in blocks:
            if block in group.held:
                self._repeat(group, block)
                continue
            prefix = source.prefix_of(block)
            if prefix is None and group.group_class.demand == ATTENTION:
                self._counts.orphans += 1
                source.loose += 1
            source.hold(group, block, prefix)
        self._count_stored(source.blocks - before)

    def _store_chain(self, source: Source, group: Group, event: BlockStored, root: int) -> None:
        """An attention group's blocks, one after another from the prefix `root` on."""
        blocks = event.block_hashes
        if not self._learn_size(source, event.block_size, event.lookahead):
            self._counts.odd_sizes += 1
            return
        prefixes = _prefixes(root, event)
        before = source.blocks
        if source.waiting or len(group.group_class.groups) > 1:
            self._hold_each(source, group, blocks, prefixes)
        else:
            self._counts.repeats += source.hold_chain(group, blocks, prefixes)
        self._count_stored(source.blocks - before)
        if source.pending:
            self._settle_pending(source, blocks)
        if prefixes and not event.tier and not event.more:
            self._note_end(source, event, prefixes[-1])

    def _hold_each(
        self, source: Source, group: Group, blocks: Sequence[EngineHash], prefixes: Sequence[int]
    ) -> None:
        held = group.held
        for block, prefix in zip(blocks, prefixes, strict=True):
            if block in held:
                self._repeat(group, block)
            else:
                source.hold(group, block, prefix)
            if block in source.waiting:
                source.settle(block, prefix)

    def _settle_pending(self, source: Source, placed: Sequence[EngineHash]) -> None:
        """What goes on from blocks that have just been placed can be placed, too."""
        parents = list(placed)
        while parents and source.pending:
            parent = parents.pop()
            for event in source.take_pending(parent):
                root = source.prefix_of(parent)
                if root is None or not self._learn_size(source, event.block_size, event.lookahead):
                    continue
                prefixes = _prefixes(root, event)
                for block, prefix in zip(event.block_hashes, prefixes, strict=True):
                    if block in source.waiting:
                        source.settle(block, prefix)
                        parents.append(block)

    def _note_end(self, source: Source, event: BlockStored, last: int) -> None:
        """Only SGLang's hashes are signed, and only its states lie where stores end."""
        if source.ends is None:
            seen_before = source.blocks - len(event.block_hashes)
            if seen_before > _UNSIGNED or not _some_negative(event.block_hashes):
                return
            if source.rule:
                return
            source.ends = RequestEnds(self._ends)
        source.ends.mark(last, source.bit)

    def _repeat(self, group: Group, block: EngineHash) -> None:
        group.repeats[block] = group.repeats.get(block, 0) + 1
        self._counts.repeats += 1

    def _count_stored(self, fresh: int) -> None:
        self._blocks += fresh
        self._counts.stored += fresh

    def _learn_size(self, source: Source, block_size: int, lookahead: int = 0) -> bool:
        known = (block_size, lookahead) in source.cuts if lookahead else block_size in source.sizes
        if known:
            return True
        if block_size < 1 or len(source.sizes) + len(source.cuts) >= _MAX_SIZES:
            return False
        if lookahead:
            cut = block_size, lookahead
            source.cuts.add(cut)
            self._lookup.peeking[cut] = self._lookup.peeking.get(cut, 0) | source.bit
            return True
        source.sizes.add(block_size)
        self._sizes[block_size] = self._sizes.get(block_size, 0) | source.bit
        return True

    def _remove(self, source: Source, event: BlockRemoved) -> None:
        if event.tier is None:
            self._counts.elsewhere += 1
            return
        group = source.groups.get((event.group, event.tier))
        before = source.blocks
        for block in event.block_hashes:
            if group is not None and source.release(group, block):
                self._counts.removed += 1
            else:
                self._counts.unknown_removed += 1
        self._blocks -= before - source.blocks

    def _cap(self) -> None:
        if self._blocks > self._max_blocks:
            self._evict()

    def _evict(self) -> None:
        """Give up the newest entries of the fullest source: tails, so that shared heads stay usable."""
        target = self._max_blocks - self._max_blocks // _EVICTION_SHARE
        while self._blocks > target:
            source = max(self._sources, key=lambda candidate: candidate.blocks)
            group = max(source.groups.values(), key=lambda candidate: len(candidate.held))
            newest = list(islice(reversed(group.held), self._blocks - target))
            for block in newest:
                source.forget(group, block)
            self._blocks -= len(newest)
            self._counts.evictions += len(newest)


def _prefixes(root: int, event: BlockStored) -> list[int]:
    """The prefixes that a store's blocks name, going on from `root`."""
    extras = event.extras
    if event.lookahead:
        extras = extras_with(event.following, event.lookahead, extras, len(event.block_hashes))
    return extend_hashes(root, event.token_ids, event.block_size, extras)


def _some_negative(blocks: Sequence[Any]) -> bool:
    try:
        return bool(min(blocks) < 0)
    except TypeError:  # whole digests
        return False
