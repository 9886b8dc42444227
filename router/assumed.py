"""What a rank that tells nothing is taken to hold: what was routed there, until it is old or pushed out.

Such a rank has a second source in the index, filled here. An engine evicts what was used longest ago, so a
report of fewer cached tokens than assumed tells that the blocks which are missing have gone, and with them
all that was last used before them; the capacity is corrected by that. Unless blocks that are older were
reported as cached not long ago: then the engine does not cache what is missing, and it has not gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import msgspec

from router.holdings import Source
from router.index import PrefixIndex

BLOCK = 64
"""Tokens of an assumed block."""
_LEAST = 64
"""Blocks that a capacity is not corrected below."""
_GROWTH = 64
"""A report as assumed lets a capacity grow by this part of it."""
_WEIGHT = 0.1
_KEPT = 0.99
"""What a later report leaves of the age up to which blocks were seen to stay."""


class AssumedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long, and how much, a rank without events is taken to hold."""

    seconds: float = 600.0
    """Since its last use."""
    tokens: int = 1_000_000
    """Of all prompts together, the most recently used."""


class _Placed(NamedTuple):
    """One prompt as it was when it was placed."""

    used: Sequence[float]
    """When each block that was assumed had been used last."""
    now: float


class Assumed:
    """The assumed blocks of one rank."""

    def __init__(self, index: PrefixIndex, source: Source, limits: AssumedLimits) -> None:
        """`source` is the rank's second one, for this alone."""
        self.source = source
        self._index = index
        self._seconds = limits.seconds
        self._most = max(limits.tokens // BLOCK, _LEAST)
        self.capacity = self._most
        """In blocks."""
        self.borne_out = 1.0
        """Share of the assumed tokens that was reported as cached."""
        self._used: OrderedDict[int, float] = OrderedDict()
        """Prefix -> last use, the least recent first."""
        self._placed: dict[int, _Placed] = {}
        """By reservation."""
        self._proven = 0.0
        """Seconds since the last use at which blocks were reported as cached, as far as that is recent."""
        self._unit = 0
        """The engine's own block: what reports are multiples of, in tokens; 0 before the first."""

    def __len__(self) -> int:
        return len(self._used)

    def placed(self, reservation: int, prefixes: Sequence[int], now: float) -> None:
        """A prompt whose whole blocks are `prefixes` goes to the rank."""
        self.expire(now)
        used = self._used
        held = 0
        while held < len(prefixes) and prefixes[held] in used:
            held += 1
        self._placed[reservation] = _Placed([used[prefix] for prefix in prefixes[:held]], now)
        self._index.assume(self.source, BLOCK, prefixes[held:])
        for prefix in reversed(prefixes):  # an engine, too, gives up a prompt's end before its beginning
            used[prefix] = now
            used.move_to_end(prefix)
        self._shrink(self.capacity)

    def ended(self, reservation: int, reported: int | None) -> None:
        """The request is over; its worker reported so many cached tokens, or nothing."""
        placed = self._placed.pop(reservation, None)
        if placed is None or reported is None or not placed.used:
            return
        self.borne_out += _WEIGHT * (min(reported / (len(placed.used) * BLOCK), 1.0) - self.borne_out)
        self._unit = gcd(self._unit, reported)
        cached = min(reported // BLOCK, len(placed.used))
        if cached:
            age = placed.now - placed.used[cached - 1]
            self._proven = max(self._proven * _KEPT, age)
        if len(placed.used) * BLOCK - reported < max(self._unit, BLOCK):
            self.capacity = min(self.capacity + self.capacity // _GROWTH, self._most)
        elif placed.now - placed.used[cached] > self._proven:
            self._drop_older(placed.used[cached])
            self.capacity = max(len(self._used), _LEAST)

    def expire(self, now: float) -> None:
        """Forget what is too old."""
        self._drop_older(now - self._seconds)

    def _drop_older(self, moment: float) -> None:
        """Forget what was last used at `moment` or before."""
        gone = 0
        for last_use in self._used.values():
            if last_use > moment:
                break
            gone += 1
        self._shrink(len(self._used) - gone)

    def _shrink(self, blocks: int) -> None:
        gone = [self._used.popitem(last=False)[0] for _ in range(len(self._used) - blocks)]
        if gone:
            self._index.unassume(self.source, gone)
