"""What ranks will hold soon: the prompts that they have been given and no event has told of yet.

A burst of siblings arrives within the time that the first of them takes: who sends each to where its head
is being computed has it computed once. Prompts in flight are kept by their first block and compared hash by
hash with one that arrives: equal hashes at a position are equal prefixes, so a bisection finds where they
part.
Announced blocks do not need this, and no prediction of cached tokens rests on it: it only weighs in costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from router.evidence import HitRule
from router.hits import Chain
from router.holdings import Source
from router.lookup import Match

_COMPARED = 32
"""Prompts in flight, the latest, that one is compared with."""


class _Prompt(NamedTuple):
    """A prompt in flight at one block size."""

    source: Source
    life: int
    block_size: int
    chain: Chain
    ends: tuple[int, ...] | None
    """Depths in blocks that count, ascending; None for any."""


class Coming:
    """Prompts in flight on all sources."""

    def __init__(self) -> None:
        self._by_first: dict[int, dict[int, _Prompt]] = {}
        """First block's hash -> reservation -> prompt, the latest last."""
        self._firsts: dict[int, list[int]] = {}
        """By reservation."""

    def placed(self, reservation: int, source: Source, match: Match) -> None:
        """The prompt of `match` goes to `source`."""
        firsts = []
        for walk in match.walks_of(source):
            chain = walk.chain
            if not chain.hashes and not chain.grow():
                continue
            ends = _ends(source, match, walk.block_size, chain)
            prompt = _Prompt(source, source.life, walk.block_size, chain, ends)
            self._by_first.setdefault(chain.hashes[0], {})[reservation] = prompt
            firsts.append(chain.hashes[0])
        if firsts:
            self._firsts[reservation] = firsts

    def ended(self, reservation: int) -> None:
        """The request is over; what it left is announced."""
        for first in self._firsts.pop(reservation, ()):
            prompts = self._by_first.get(first)
            if prompts is not None:
                prompts.pop(reservation, None)
                if not prompts:
                    del self._by_first[first]

    def found(self, match: Match) -> dict[Source, int]:
        """Tokens of the prompt of `match` that sources will hold once they have done what they were given."""
        found: dict[Source, int] = {}
        if self._by_first:
            for source, tokens in self._shared(match):
                if tokens > found.get(source, 0):
                    found[source] = tokens
        return found

    def _shared(self, match: Match) -> Iterator[tuple[Source, int]]:
        for walk in match.walks:
            chain = walk.chain
            if not chain.hashes:
                continue
            prompts = self._by_first.get(chain.hashes[0])
            if prompts is None:
                continue
            for prompt in islice(reversed(prompts.values()), _COMPARED):
                if prompt.block_size == walk.block_size and prompt.life == prompt.source.life:
                    yield prompt.source, _usable(prompt, chain) * walk.block_size


def _ends(source: Source, match: Match, block_size: int, chain: Chain) -> tuple[int, ...] | None:
    """Where a state is kept while a prompt is computed: at its last whole block, and where others part."""
    if source.hit_rule is HitRule.FINISHED:
        return ()
    if source.hit_rule is not HitRule.STATE or not source.rule:
        return None
    junction = match.predictions(source).attention // block_size
    return tuple(sorted({depth for depth in (junction, chain.length) if depth}))


def _usable(prompt: _Prompt, chain: Chain) -> int:
    depth = common_depth(prompt.chain, chain)
    if prompt.ends is None:
        return depth
    return max((end for end in prompt.ends if end <= depth), default=0)


def common_depth(one: Chain, other: Chain) -> int:
    """Blocks in which two prompts agree. Hashes no further than twice as deep as that."""
    limit = min(one.length, other.length)
    low, reach = 0, 0
    while reach < limit:
        for chain in (one, other):
            if len(chain.hashes) <= reach:
                chain.grow()
        reach = min(len(one.hashes), len(other.hashes), limit)
        if one.hashes[reach - 1] != other.hashes[reach - 1]:
            break
        low = reach
    high = reach
    while low < high:
        middle = (low + high + 1) // 2
        if one.hashes[middle - 1] == other.hashes[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
