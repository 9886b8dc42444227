"""A prompt whose ids differ from pool to pool, made comparable: what each worker would have to compute.

Pools may have different tokenizers or encodings, so the same prompt has more tokens in one than in
another. Costs compare uncached tokens: overlaps are put on the scale of the longest variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.beliefs import Beliefs
from router.holdings import Source
from router.index import PrefixIndex
from router.lookup import Below, Match
from router.messages import RouteRequest, TokenIds
from router.target import Overlaps, Target

_NO_SURPLUS: Mapping[str, int] = {}


class Found(NamedTuple):
    """Overlaps for a policy, and how to read them."""

    overlaps: Overlaps
    """Cached tokens, as predicted."""
    expected: Overlaps
    """The same once the ranks have done what they were given: for costs."""
    prompt_tokens: int
    surplus: Mapping[str, int] = _NO_SURPLUS
    """By pool, by how much `prompt_tokens` and the overlaps exceed those of the pool's own variant."""
    matches: Sequence[tuple[frozenset[str] | None, TokenIds, Match]] = ()
    """What was looked up, by pools (None for all)."""
    prefills: bool = True
    """Whether the targets compute what they do not hold; else they are sent the prompt's KV cache."""

    def is_short(self, target: Target, most: int) -> bool:
        """Whether the target holds all but at most `most` tokens."""
        overlap = self.overlap(target)
        return overlap > 0 and self.tokens(target) - overlap <= most

    @property
    def below(self) -> Mapping[Source, Below]:
        """What of the prompt is cached on lower tiers."""
        if len(self.matches) == 1:
            return self.matches[0][2].below
        return {source: below for _, _, match in self.matches for source, below in match.below.items()}

    def tokens(self, target: Target) -> int:
        """The prompt's length in the target's encoding."""
        return self.prompt_tokens - self.surplus.get(target.info.pool, 0)

    def overlap(self, target: Target) -> int:
        """What the target holds of it."""
        return max(self.overlaps.get(target.source, 0) - self.surplus.get(target.info.pool, 0), 0)

    def expected_overlap(self, target: Target) -> int:
        """What it will hold once it has done what it was given."""
        return max(self.expected.get(target.source, 0) - self.surplus.get(target.info.pool, 0), 0)

    def looked_up(self, target: Target) -> tuple[TokenIds, Match] | None:
        """The prompt in the target's encoding and what was found of it; None where nothing was looked up."""
        for pools, token_ids, match in self.matches:
            if pools is None or target.info.pool in pools:
                return token_ids, match
        return None

    def best_overlap(self, targets: Sequence[Target]) -> int:
        """The most that a target holds."""
        if not self.overlaps:
            return 0
        if self.surplus:
            return max(map(self.overlap, targets))
        held = self.overlaps.get
        return max(held(target.source, 0) for target in targets)


def find_overlaps(
    index: PrefixIndex, beliefs: Beliefs, request: RouteRequest, targets: Sequence[Target]
) -> Found:
    """What each target holds of the request's prompt, in the target's own encoding."""
    if not request.variants:
        match = index.match(request.token_ids, request.cache_salt, request.lora, request.hashes)
        held = beliefs.held(match)
        looked_up = [(None, request.token_ids, match)]
        return Found(held, beliefs.expected(match, held), len(request.token_ids), matches=looked_up)
    longest = max(len(variant.token_ids) for variant in request.variants)
    surplus: dict[str, int] = {}
    overlaps: dict[Source, int] = {}
    expected: dict[Source, int] = {}
    matches: list[tuple[frozenset[str] | None, TokenIds, Match]] = []
    for variant in request.variants:
        match = index.match(variant.token_ids, request.cache_salt, request.lora, variant.hashes)
        matches.append((variant.pools, variant.token_ids, match))
        held = beliefs.held(match)
        coming = beliefs.expected(match, held)
        more = longest - len(variant.token_ids)
        surplus |= dict.fromkeys(variant.pools, more)
        for target in targets:
            if target.info.pool in variant.pools:
                overlaps[target.source] = held.get(target.source, 0) + more
                expected[target.source] = coming.get(target.source, 0) + more
    return Found(overlaps, expected, longest, surplus, matches)


def without_overlaps(request: RouteRequest) -> Found:
    """The same for targets that are sent the prompt's KV cache, whatever they hold."""
    if not request.variants:
        return Found({}, {}, len(request.token_ids), prefills=False)
    longest = max(len(variant.token_ids) for variant in request.variants)
    surplus = {pool: longest - len(each.token_ids) for each in request.variants for pool in each.pools}
    return Found({}, {}, longest, surplus, prefills=False)


def eligible_pools(request: RouteRequest) -> frozenset[str] | None:
    """Pools whose workers can be sent one of the request's variants; None for any."""
    if not request.variants:
        return request.pools
    return frozenset().union(*(variant.pools for variant in request.variants))
