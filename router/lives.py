"""Lives of sources in the lookup's tables: each has a bit of its own, so that what an old one held is void.

A bit comes back into use when all marks of its life have been swept out of the tables, a few at a time.
"""

from __future__ import annotations

from collections import deque

from router.evidence import HitRule
from router.holdings import LostLife, Rule, Source, unset
from router.lookup import Lookup


class Lives:
    """Who has which bit, and what is asked of it."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._free: list[int] = []
        self._bits = 0
        self._lost: deque[LostLife] = deque()

    @property
    def unswept(self) -> int:
        """Marks of lost lives that are in the tables still."""
        return sum(life.size for life in self._lost)

    def new_bit(self) -> int:
        """A bit that no table has."""
        if self._free:
            return self._free.pop()
        self._bits += 1
        return 1 << (self._bits - 1)

    def begin(self, source: Source) -> None:
        """The life of the source's bit begins."""
        self._lookup.own(source)
        self._follow_states(source)
        self._except(source)

    def end(self, source: Source) -> None:
        """It ends: lookups do not see it from now on."""
        lookup, bit = self._lookup, source.bit
        lookup.disown(source)
        if source.engine is not None:
            unset(lookup.engines, source.engine, bit)
        for block_size in source.sizes:
            unset(lookup.sizes, block_size, bit)
        for cut in source.cuts:
            unset(lookup.peeking, cut, bit)
        for demand in source.classes:
            unset(lookup.tiered, demand.tier, bit)
        unset(lookup.rules, source.rule, bit)
        unset(lookup.exceptions, source.hit_rule, bit)
        self._lost.append(LostLife(source))
        self.sweep(1)

    def follow(self, source: Source, rule: HitRule) -> None:
        """The source's hits are predicted by this rule."""
        unset(self._lookup.exceptions, source.hit_rule, source.bit)
        source.hit_rule = rule
        if source.bit in self._lookup.owners:
            self._except(source)

    def regroup(self, source: Source, before: Rule) -> None:
        """The source has another class of groups; its state classes were `before`."""
        unset(self._lookup.rules, before, source.bit)
        self._follow_states(source)

    def sweep(self, budget: int) -> None:
        """Clear up to `budget` marks of lost lives."""
        while self._lost and budget > 0:
            life = self._lost[0]
            budget -= life.sweep(budget)
            if not life.size:
                self._lost.popleft()
                self._free.append(life.bit)

    def _except(self, source: Source) -> None:
        rule, exceptions = source.hit_rule, self._lookup.exceptions
        if rule is not HitRule.STATE:
            exceptions[rule] = exceptions.get(rule, 0) | source.bit

    def _follow_states(self, source: Source) -> None:
        rules = self._lookup.rules
        rules[source.rule] = rules.get(source.rule, 0) | source.bit
