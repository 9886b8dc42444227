"""Lookups: how much of a prompt each source holds, by the rule that the source follows.

A lookup gallops down a prompt's chain and ANDs the masks of the tables; it stops, and stops hashing, where
the last worker drops out. `index` fills the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress
from typing import NamedTuple, cast

from router.evidence import HitRule, Predictions
from router.hashing import HashMemo, PrefixChain, PrefixHasher
from router.hits import Chain, Depth, Marks, contiguous, ending_in_part, ending_in_run, satisfying_all
from router.holdings import ATTENTION, Demand, EngineBlocks, Rule, Source, Table
from router.lookahead import LookaheadChain
from router.messages import TokenIds
from router.recipes import BlockChain, EngineChain
from router.tiers import AnyOf, Tier, contiguous_anywhere

_FEW = 12
"""Sources up to which a mask is taken apart bit by bit."""
_BITS = bytes.maketrans(b"01", b"\0\1")


class Match:
    """What the sources hold of one prompt. Good until the index changes."""

    __slots__ = ("_lookup", "below", "usable", "walks")

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self.walks: list[Walk] = []
        self.usable: dict[Source, int] = {}
        """Cached tokens by the rule that each source follows; sources without any are absent."""
        self.below: dict[Source, Below] = {}
        """Of these, what is not on the device and has to be loaded first."""

    def predictions(self, source: Source) -> Predictions:
        """Cached tokens on one source by each rule."""
        bests = [self._lookup.depths_of(source, walk) for walk in self.walks_of(source)]
        if not bests:
            return Predictions(0, 0, None if source.ends is None else 0)
        state, attention, finished = (max(column) for column in zip(*bests, strict=True))
        return Predictions(state, attention, None if source.ends is None else finished)

    def walks_of(self, source: Source) -> Iterator[Walk]:
        """The prompt's chains at the source's block sizes."""
        return (walk for walk in self.walks if walk.mask & source.bit)

    def whole_chain(self, block_size: int, tokens: int) -> PrefixChain | None:
        """The chain of all whole blocks of that size, where the look-up has made it already."""
        for walk in self.walks:
            chain = walk.chain
            if walk.block_size == block_size and isinstance(chain, PrefixChain):
                return chain if chain.length == tokens // block_size else None
        return None

    def prompt_ends(self, source: Source) -> list[int]:
        """The prefix that names all whole blocks of the prompt, for each of the source's sizes."""
        return [walk.chain.end() for walk in self.walks_of(source)]


class Below(NamedTuple):
    """Tokens of a prompt by where they have to be loaded from."""

    host: int
    disk: int


class Walk(NamedTuple):
    """A prompt's chain at one block size, and how deep attention goes on the sources of `mask`."""

    block_size: int
    mask: int
    chain: Chain
    depths: list[Depth]
    """In blocks."""
    units: EngineChain | None = None
    """Where blocks may be held in part: the chain of their units."""
    stride: int = 1
    """Units to a block."""
    tiers: Tier = Tier.DEVICE
    """The lowest tier whose blocks count."""


class Lookup:
    """The tables of an index, and what can be asked of them."""

    def __init__(self, hasher: PrefixHasher) -> None:
        self._hasher = hasher
        self.attention: Table = {}
        self.tables: dict[Demand, Table] = {ATTENTION: self.attention}
        self.owners: dict[int, Source] = {}
        """Source by bit, of lives that go on."""
        self._seats: list[Source | None] = []
        """The same by the bit's number; None for a bit that nobody has."""
        self.sizes: dict[int, int] = {}
        """Block size -> mask of the sources that have announced it."""
        self.peeking: dict[tuple[int, int], int] = {}
        """(Block size, lookahead) -> the same, of blocks whose hash covers tokens after them."""
        self.engines: dict[EngineBlocks, int] = {}
        """The same for sources whose blocks go by the engine's own hashes."""
        self.tiered: dict[Tier, int] = {}
        """Tier -> mask of the sources that have announced blocks there."""
        self.rules: dict[Rule, int] = {}
        """State classes -> mask of the sources with exactly these."""
        self.ends: Table = {}
        """Where finished requests ended, on sources of which only that tells."""
        self.exceptions: dict[HitRule, int] = {}
        """Hit rule -> mask of the sources that follow it instead of their announced states."""

    def own(self, source: Source) -> None:
        """A life begins."""
        self.owners[source.bit] = source
        number = source.bit.bit_length() - 1
        self._seats += [None] * (number + 1 - len(self._seats))
        self._seats[number] = source

    def disown(self, source: Source) -> None:
        """It ends."""
        del self.owners[source.bit]
        self._seats[source.bit.bit_length() - 1] = None

    def match(
        self,
        tokens: TokenIds,
        cache_salt: str | None = None,
        lora: str | None = None,
        memo: HashMemo | None = None,
    ) -> Match:
        """What each source holds of a prompt, at most the whole blocks of all tokens but the last."""
        match = Match(self)
        root = self._hasher.root(cache_salt, lora)
        for block_size, mask in self.sizes.items():
            limit = (len(tokens) - 1) // block_size
            if limit < 1 or not mask:
                continue
            chain = PrefixChain(tokens, block_size, root, limit, memo)
            match.walks.append(self._walk(block_size, mask, chain))
        for (block_size, lookahead), mask in self.peeking.items():
            peeking = LookaheadChain(tokens, block_size, lookahead, root)
            match.walks.append(self._walk(block_size, mask, peeking))
        if self.engines and lora is None:
            match.walks += self._engine_walks(tokens, cache_salt, memo)
        if self.tiered:
            self._add_tiers(match)
        for walk in match.walks:
            found = self._usable_by_source(walk)
            if match.usable:  # a source with blocks of several sizes is in several walks
                for source in found.keys() & match.usable.keys():
                    found[source] = max(found[source], match.usable[source])
                found = match.usable | found
            match.usable = found
        for source in self._members(self.exceptions.get(HitRule.DISCOUNT, 0)):
            if source in match.usable:
                match.usable[source] = int(match.usable[source] * source.discount)
        return match

    def _walk(self, block_size: int, mask: int, chain: Chain) -> Walk:
        return Walk(block_size, mask, chain, contiguous(chain, self.attention, mask))

    def _add_tiers(self, match: Match) -> None:
        """Walks of their own for sources with lower tiers, whose blocks count wherever they are."""
        tiered = self.tiered.get(Tier.HOST, 0) | self.tiered.get(Tier.DISK, 0)
        for number, walk in enumerate(list(match.walks)):
            mask = walk.mask & tiered
            if not mask:
                continue
            deepest = self._anywhere(walk, mask, Tier.DISK)
            device = self._usable_by_source(self._anywhere(walk, mask, Tier.DEVICE))
            host = self._usable_by_source(self._anywhere(walk, mask, Tier.HOST))
            for source, tokens in self._usable_by_source(deepest).items():
                upto = max(host.get(source, 0), device.get(source, 0))
                below = Below(upto - device.get(source, 0), max(tokens - upto, 0))
                if any(below):
                    match.below[source] = below
            match.walks[number] = walk._replace(mask=walk.mask & ~mask)
            match.walks.append(deepest)

    def _anywhere(self, walk: Walk, mask: int, tier: Tier) -> Walk:
        table = self._marks(ATTENTION, tier)
        depths = contiguous_anywhere(walk.chain, table, mask)
        return Walk(walk.block_size, mask, walk.chain, depths, tiers=tier)

    def _marks(self, demand: Demand, tier: Tier) -> Marks:
        """Where a class of groups holds blocks, down to `tier`."""
        if not tier:
            return self.tables[demand]
        demands = (demand._replace(tier=each) for each in Tier if each <= tier)
        return AnyOf([self.tables[each] for each in demands if each in self.tables])

    def _engine_walks(self, tokens: TokenIds, salt: str | None, memo: HashMemo | None) -> Iterator[Walk]:
        """An adapter's path, which vLLM hashes, is not known: prompts for one match none of these."""
        for engine, mask in self.engines.items():
            layout, block_size = engine
            limit = (len(tokens) - 1) // layout.unit
            if limit < 1:
                continue
            units = EngineChain(tokens, layout, salt, limit, memo)
            stride = block_size // layout.unit
            if stride == 1:
                yield self._walk(block_size, mask, units)
                continue
            blocks = BlockChain(units, stride)
            depths = contiguous(blocks, self.attention, mask)
            yield Walk(block_size, mask, blocks, depths, units, stride)

    def depths_of(self, source: Source, walk: Walk) -> tuple[int, int, int]:
        """Tokens that count as cached on one source: by state, by attention, by finished requests."""
        bit = source.bit
        attention = self._satisfying(walk, bit, frozenset())
        if not attention:
            return 0, 0, 0
        by_state = self._satisfying(walk, bit, source.rule) if source.rule else attention
        by_ends = by_state if source.ends is None else self._finished(walk, bit)
        return (
            by_state[0][0] if by_state else 0,
            attention[0][0],
            by_ends[0][0] if by_ends else 0,
        )

    def _usable_by_source(self, walk: Walk) -> dict[Source, int]:
        found: dict[Source, int] = {}
        for usable, mask in self._usable(walk):
            if not mask & (mask - 1):
                found[self.owners[mask]] = usable
                continue
            members = dict.fromkeys(self._members(mask), usable)
            # A walk names each source once: the few go to the many, whichever came first.
            if len(found) > len(members):
                found |= members
            else:
                members |= found
                found = members
        return found

    def _usable(self, walk: Walk) -> list[Depth]:
        """Tokens by the rule that each source follows."""
        usable: list[Depth] = []
        exceptions = 0
        for hit_rule, followers in self.exceptions.items():
            exceptions |= followers
            if hit_rule is HitRule.FINISHED:
                usable += self._finished(walk, followers)
            else:
                usable += self._satisfying(walk, followers, frozenset())
        for rule, followers in self.rules.items():
            usable += self._satisfying(walk, followers & ~exceptions, rule)
        return usable

    def _finished(self, walk: Walk, mask: int) -> list[Depth]:
        ends = ending_in_run(walk.chain.hashes, _of(walk.depths, mask), self.ends, 1)
        return _in_tokens(ends, walk.block_size)

    def _satisfying(self, walk: Walk, mask: int, rule: Rule) -> list[Depth]:
        """Tokens, on the sources of `mask`, down to where each class of `rule` agrees with attention."""
        mask &= walk.mask
        if not mask:
            return []
        if walk.units is not None and not any(demand.window for demand in rule):
            deepest = walk.depths[0][0] if walk.depths else 0
            walk.units.grow_to((deepest + 1) * walk.stride - 1)
            states: list[Marks] = [self.tables[demand] for demand in rule]
            theirs = _of(walk.depths, mask)
            ends = ending_in_part(walk.units.hashes, theirs, mask, walk.stride, self.attention, states)
            return _in_tokens(ends, walk.block_size // walk.stride)
        size = walk.block_size
        if not rule:
            return [(depth * size, held) for depth, members in walk.depths if (held := members & mask)]
        classes = [(self._marks(demand, walk.tiers), demand.span(size)) for demand in rule]
        return _in_tokens(satisfying_all(walk.chain.hashes, _of(walk.depths, mask), classes), size)

    def _members(self, mask: int) -> Iterable[Source]:
        if mask.bit_count() <= _FEW:
            return self._few(mask)
        return compress(cast(list[Source], self._seats), bin(mask)[:1:-1].encode().translate(_BITS))

    def _few(self, mask: int) -> Iterator[Source]:
        while mask:
            low = mask & -mask
            mask ^= low
            yield self.owners[low]


def _of(depths: list[Depth], mask: int) -> list[Depth]:
    return [(depth, held) for depth, members in depths if (held := members & mask)]


def _in_tokens(depths: list[Depth], size: int) -> list[Depth]:
    return [(depth * size, members) for depth, members in depths]
