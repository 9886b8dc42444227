"""How far what is known of each rank's cache can be trusted, and what is believed where nothing is told.

A rank is EXACT while its event feed is, and every block that it announces can be placed; DEGRADED when
something was lost or cannot be placed; APPROXIMATE when its events tell nothing, or next to nothing. Of an
APPROXIMATE rank, what was routed there counts as cached (`assumed`). Of one that is not EXACT, predictions
count as far as its reports have borne them out (`evidence`).
"""

from __future__ import annotations

from collections.abc import Callable

from router.assumed import BLOCK, Assumed, AssumedLimits
from router.coming import Coming
from router.index import PrefixIndex
from router.lookup import Match
from router.messages import RouteRequest, TokenIds
from router.rules import RuleKeeper
from router.sequencer import FeedState
from router.target import Overlaps, Target

_CREDIT = 0.5
"""Share of what is coming that costs count on: engines differ in how soon they share what they compute."""


class Beliefs:
    """Of all ranks."""

    def __init__(
        self, index: PrefixIndex, rules: RuleKeeper, limits: AssumedLimits, clock: Callable[[], float]
    ) -> None:
        self._index = index
        self._rules = rules
        self._limits = limits
        self._clock = clock
        self._coming = Coming()
        self._unsure: set[Target] = set()
        """Those that are not EXACT."""
        self._assuming: dict[int, Assumed] = {}
        """By reservation, where a prompt went to a rank with assumed blocks."""

    def settle(self, target: Target) -> None:
        """The rank's feed has another state, or its events told something."""
        state, _ = target.knowledge
        if target.feed is FeedState.EXACT:
            target.unverified = False
        (self._unsure.discard if state is FeedState.EXACT else self._unsure.add)(target)
        assumed = target.assumed
        if state is FeedState.APPROXIMATE and assumed is None:
            target.assumed = Assumed(self._index, self._index.open(target.key), self._limits)
        elif state is not FeedState.APPROXIMATE and assumed is not None:
            self._drop(target, assumed)

    def forget(self, target: Target) -> None:
        """The rank is gone."""
        self._unsure.discard(target)
        if target.assumed is not None:
            self._drop(target, target.assumed)

    def clear(self, target: Target) -> None:
        """The rank holds nothing now."""
        if target.assumed is not None:
            self._drop(target, target.assumed)
            self.settle(target)

    def held(self, match: Match) -> Overlaps:
        """Cached tokens by each rank's source: as announced, or else as assumed."""
        if not self._unsure:
            return match.usable
        held = dict(match.usable)
        for target in self._unsure:
            tokens = held.pop(target.source, 0) * self._rules.of(target.key).borne_out
            if target.unverified:
                tokens = 0.0
            if target.assumed is not None:
                assumed = held.pop(target.assumed.source, 0) * target.assumed.borne_out
                tokens = max(tokens, assumed)
            if tokens:
                held[target.source] = int(tokens)
        return held

    def expected(self, match: Match, held: Overlaps) -> Overlaps:
        """The same once ranks have done what they were given."""
        coming = self._coming.found(match)
        if not coming:
            return held
        expected = dict(held)
        for source, tokens in coming.items():
            sure = held.get(source, 0)
            if tokens > sure:
                expected[source] = sure + int(_CREDIT * (tokens - sure))
        return expected

    def placed(
        self, reservation: int, target: Target, match: Match, token_ids: TokenIds, request: RouteRequest
    ) -> None:
        """A prompt goes to the rank."""
        self._coming.placed(reservation, target.source, match)
        assumed = target.assumed
        if assumed is not None:
            chain = match.whole_chain(BLOCK, len(token_ids)) or self._index.chain(
                token_ids, BLOCK, request.cache_salt, request.lora, request.hashes
            )
            while chain.grow():
                pass
            assumed.placed(reservation, chain.hashes, self._clock())
            self._assuming[reservation] = assumed

    def ended(self, reservation: int, reported: int | None) -> None:
        """The request is over; its worker reported so many cached tokens, or nothing."""
        self._coming.ended(reservation)
        assumed = self._assuming.pop(reservation, None)
        if assumed is not None:
            assumed.ended(reservation, reported)

    def _drop(self, target: Target, assumed: Assumed) -> None:
        target.assumed = None
        self._index.close(assumed.source)
