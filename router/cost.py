"""What a placement costs, in seconds until the first token, with a price on work while the fleet is busy.

cost = queue + (1 + price) x prefill + decodes + loading + transfer + failures

The queue is what the rank has been given to prefill and has not done by now. The price is 0 in an idle fleet,
where the soonest first token wins. The more ranks are busy whenever a prompt arrives, the more of those who
come later are delayed by a second of prefill, so ranks that hold the prompt gain weight: no thresholds, no
modes. The price needs no rates; its constants were tuned in `loadtests/fleet` (docs/benchmarks.md).

Predicted seconds follow constants and a pace: how long prefills took over how long they should have taken,
of the pool, and of each rank as far as it has shown that it differs.
"""

from __future__ import annotations

import msgspec

from router.load import Load
from router.lookup import Below
from router.target import Ask, Target

_RECENT = 0.05
"""Weight of the latest arrival in the busy share."""
_PRICE = 3.0
_STEEPNESS = 6
"""How late the price sets in: this power of the busy share is the chance that so many ranks are all busy."""
_SLACK = 0.05
"""Keeps the price finite when every rank is always busy: at most _PRICE / _SLACK."""


class CostConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of a worker rank, in seconds. A learned pace corrects the first three by a common factor."""

    prefill_seconds: float = 0.012
    """Of any prompt, however short."""
    prefill_seconds_per_token: float = 1 / 20_000
    """Of an uncached prompt token."""
    prefill_seconds_per_token_pair: float = 1 / 20_000 / 60_000
    """Of an uncached prompt token, for each token before it: attention."""
    host_seconds_per_token: float = 1 / 200_000
    """Of a cached token that is loaded from host memory."""
    disk_seconds_per_token: float = 1 / 40_000
    """Of one that is loaded from disk."""
    decode_seconds_per_sequence: float = 0.002
    """That each sequence in flight takes from a prefill beside it."""
    decode_seconds_per_context_token: float = 1e-8
    """That each token of context in use takes from it."""


class CostTerms(msgspec.Struct, frozen=True):
    """What a cost adds up, in seconds."""

    queue: float
    """Prompts that wait before this one."""
    prefill: float
    """Its own uncached tokens."""
    congestion: float
    """The price of its prefill to those who come later."""
    decodes: float
    """Interference by the sequences that the worker runs already."""
    loading: float
    """Bringing what is cached in host memory or on disk to the device."""
    transfer: float
    """Moving the prompt's KV cache between the two workers of a pair."""
    failures: float
    """Recent failures in a row."""

    @property
    def total(self) -> float:
        return float(sum(msgspec.structs.astuple(self)))


class Congestion:
    """How busy a fleet is when prompts arrive."""

    __slots__ = ("busy", "price")

    def __init__(self) -> None:
        self.busy = 0.0
        """Moving mean of the share of ranks that have prompts to prefill."""
        self.price = 0.0
        """Seconds that a second of prefill costs others."""

    def arrival(self, busy_share: float) -> None:
        """A prompt arrived and found this share of the ranks busy."""
        self.busy += _RECENT * (busy_share - self.busy)
        self.price = _PRICE * self.busy**_STEEPNESS / (1 + _SLACK - self.busy)


class CostModel:
    """Seconds from `CostConstants`, a rank's load and the prompt."""

    __slots__ = ("_base", "_per_context_token", "_per_pair", "_per_sequence", "_per_token", "constants")

    def __init__(self, constants: CostConstants) -> None:
        self.constants = constants
        self._base = constants.prefill_seconds
        self._per_token = constants.prefill_seconds_per_token
        self._per_pair = constants.prefill_seconds_per_token_pair
        self._per_sequence = constants.decode_seconds_per_sequence
        self._per_context_token = constants.decode_seconds_per_context_token

    def usual_prefill(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Seconds for what is not cached, at a pace of 1; 0 when there is nothing to compute."""
        uncached = prompt_tokens - cached_tokens
        if uncached <= 0:
            return 0.0
        before = prompt_tokens - uncached / 2
        return self._base + uncached * (self._per_token + self._per_pair * before)

    def prefill(self, load: Load, prompt_tokens: int, cached_tokens: int) -> float:
        """The same at the rank's pace."""
        return self.usual_prefill(prompt_tokens, cached_tokens) * load.pace.factor

    def decodes(self, load: Load) -> float:
        """Interference by what the rank decodes."""
        return load.sequences * self._per_sequence + load.context_tokens * self._per_context_token

    def occupied(self, load: Load, now: float) -> float:
        """What the rank is busy with, apart from the prompt at hand."""
        return load.wait(now) + self.decodes(load) + load.failures.seconds(now)

    def seconds(self, target: Target, ask: Ask) -> float:
        """The cost of the prompt on the rank."""
        load = target.load
        cost = self.occupied(load, ask.now)
        cost += (1 + ask.price) * self.prefill(load, ask.prompt_tokens, ask.overlaps.get(target.source, 0))
        if ask.loading:
            cost += self.loading(ask.loading.get(target.source))
        return cost + ask.transfer.get(target.key.worker, 0.0) if ask.transfer else cost

    def loading(self, below: Below | None) -> float:
        """Seconds to bring what is cached on lower tiers to the device."""
        if below is None:
            return 0.0
        constants = self.constants
        return below.host * constants.host_seconds_per_token + below.disk * constants.disk_seconds_per_token

    def first_token(self, target: Target, ask: Ask) -> float:
        """Seconds until the first token, as predicted: the cost without its price and failures."""
        load = target.load
        prefill = self.prefill(load, ask.prompt_tokens, ask.overlaps.get(target.source, 0))
        wait = load.wait(ask.now) + self.decodes(load) + self.loading(ask.loading.get(target.source))
        return wait + prefill + ask.transfer.get(target.key.worker, 0.0)

    def terms(self, target: Target, ask: Ask) -> CostTerms:
        """The cost, apart."""
        load = target.load
        prefill = self.prefill(load, ask.prompt_tokens, ask.overlaps.get(target.source, 0))
        return CostTerms(
            queue=load.wait(ask.now),
            prefill=prefill,
            congestion=ask.price * prefill,
            decodes=self.decodes(load),
            loading=self.loading(ask.loading.get(target.source)),
            transfer=ask.transfer.get(target.key.worker, 0.0),
            failures=load.failures.seconds(ask.now),
        )
