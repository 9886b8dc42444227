"""Lookups: how much of a prompt each source holds, by the rule that the source follows.

A lookup walks a prompt's chain and ANDs the masks of the tables; it stops, and stops hashing, where the last
worker drops out, so holes in a worker's chain are honoured exactly. `index` fills the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from router.evidence import HitRule, Predictions
from router.hashing import HashMemo, PrefixChain, PrefixHasher
from router.hits import Chain, Depth, contiguous, ending_in_part, ending_in_run, satisfying_all
from router.holdings import ATTENTION, Demand, EngineBlocks, Rule, Source, Table
from router.messages import TokenIds
from router.recipes import BlockChain, EngineChain


class Match:
    """What the sources hold of one prompt. Good until the index changes."""

    __slots__ = ("_lookup", "usable", "walks")

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self.walks: list[_Walk] = []
        self.usable: dict[Source, int] = {}
        """Cached tokens by the rule that each source follows; sources without any are absent."""

    def predictions(self, source: Source) -> Predictions:
        """Cached tokens on one source by each rule."""
        bests = [self._lookup.depths_of(source, walk) for walk in self.walks if walk.mask & source.bit]
        if not bests:
            return Predictions(0, 0, None if source.ends is None else 0)
        state, attention, finished = (max(column) for column in zip(*bests, strict=True))
        return Predictions(state, attention, None if source.ends is None else finished)

    def prompt_ends(self, source: Source) -> list[tuple[int, int]]:
        """(block size, prefix that names all whole blocks of the prompt), for each of the source's sizes."""
        return [(walk.block_size, walk.chain.end()) for walk in self.walks if walk.mask & source.bit]


class _Walk(NamedTuple):
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


class Lookup:
    """The tables of an index, and what can be asked of them."""

    def __init__(self, hasher: PrefixHasher) -> None:
        self._hasher = hasher
        self.attention: Table = {}
        self.tables: dict[Demand, Table] = {ATTENTION: self.attention}
        self.owners: dict[int, Source] = {}
        """Source by bit, of lives that go on."""
        self.sizes: dict[int, int] = {}
        """Block size -> mask of the sources that have announced it."""
        self.engines: dict[EngineBlocks, int] = {}
        """The same for sources whose blocks go by the engine's own hashes."""
        self.rules: dict[Rule, int] = {}
        """State classes -> mask of the sources with exactly these."""
        self.ends: Table = {}
        """Where finished requests ended, on sources of which only that tells."""
        self.exceptions: dict[HitRule, int] = {}
        """Hit rule -> mask of the sources that follow it instead of their announced states."""

    def match(
        self,
        tokens: TokenIds,
        cache_salt: str | None = None,
        lora: str | None = None,
        memo: HashMemo | None = None,
    ) -> Match:
        """What each source holds of a prompt, at most the whole blocks of all tokens but the last."""
        match = Match(self)
        found = match.usable
        root = self._hasher.root(cache_salt, lora)
        for block_size, mask in self.sizes.items():
            limit = (len(tokens) - 1) // block_size
            if limit < 1 or not mask:
                continue
            chain = PrefixChain(tokens, block_size, root, limit, memo)
            depths = contiguous(chain, self.attention, mask)
            match.walks.append(_Walk(block_size, mask, chain, depths))
        if self.engines and lora is None:
            match.walks += self._engine_walks(tokens, cache_salt, memo)
        for walk in match.walks:
            for usable, members in self._usable(walk):
                for source in self._members(members):
                    if usable > found.get(source, 0):
                        found[source] = usable
        for source in self._members(self.exceptions.get(HitRule.DISCOUNT, 0)):
            if source in found:
                found[source] = int(found[source] * source.discount)
        return match

    def _engine_walks(self, tokens: TokenIds, salt: str | None, memo: HashMemo | None) -> Iterator[_Walk]:
        """An adapter's path, which vLLM hashes, is not known: prompts for one match none of these."""
        for engine, mask in self.engines.items():
            layout, block_size = engine
            limit = (len(tokens) - 1) // layout.unit
            if limit < 1:
                continue
            units = EngineChain(tokens, layout, salt, limit, memo)
            stride = block_size // layout.unit
            if stride == 1:
                yield _Walk(block_size, mask, units, contiguous(units, self.attention, mask))
                continue
            blocks = BlockChain(units, stride)
            depths = contiguous(blocks, self.attention, mask)
            yield _Walk(block_size, mask, blocks, depths, units, stride)

    def depths_of(self, source: Source, walk: _Walk) -> tuple[int, int, int]:
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

    def _usable(self, walk: _Walk) -> list[Depth]:
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

    def _finished(self, walk: _Walk, mask: int) -> list[Depth]:
        ends = ending_in_run(walk.chain.hashes, _of(walk.depths, mask), self.ends, 1)
        return _in_tokens(ends, walk.block_size)

    def _satisfying(self, walk: _Walk, mask: int, rule: Rule) -> list[Depth]:
        """Tokens, on the sources of `mask`, down to where each class of `rule` agrees with attention."""
        mask &= walk.mask
        if not mask:
            return []
        if walk.units is not None and not any(demand.window for demand in rule):
            deepest = walk.depths[0][0] if walk.depths else 0
            walk.units.grow_to((deepest + 1) * walk.stride - 1)
            states = [self.tables[demand] for demand in rule]
            theirs = _of(walk.depths, mask)
            ends = ending_in_part(walk.units.hashes, theirs, mask, walk.stride, self.attention, states)
            return _in_tokens(ends, walk.block_size // walk.stride)
        depths = _of(walk.depths, mask)
        if depths and rule:
            classes = [(self.tables[demand], demand.span(walk.block_size)) for demand in rule]
            depths = satisfying_all(walk.chain.hashes, depths, classes)
        return _in_tokens(depths, walk.block_size)

    def _members(self, mask: int) -> Iterator[Source]:
        while mask:
            low = mask & -mask
            mask ^= low
            yield self.owners[low]


def _of(depths: list[Depth], mask: int) -> list[Depth]:
    return [(depth, held) for depth, members in depths if (held := members & mask)]


def _in_tokens(depths: list[Depth], size: int) -> list[Depth]:
    return [(depth * size, members) for depth, members in depths]
