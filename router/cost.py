"""What a placement costs, in seconds of the worker's time before and around the first token."""

from __future__ import annotations

import msgspec

from router.load import Load


class CostConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of a worker rank. Only their ratios steer the choice."""

    prefill_seconds_per_token: float = 1 / 20_000
    """Seconds that one uncached prompt token takes."""
    decode_seconds_per_sequence: float = 0.000_5
    """Seconds that each sequence in flight takes from a prefill beside it."""
    decode_seconds_per_context_token: float = 1e-8
    """Seconds that each token of context in use takes from it."""


class CostTerms(msgspec.Struct, frozen=True):
    """What `CostModel.seconds` adds up, in seconds."""

    queue: float
    """Prompts that wait before this one."""
    prefill: float
    """Its own uncached tokens."""
    decodes: float
    """Interference by the sequences that the worker runs already."""


class CostModel:
    """Seconds from `CostConstants` and a rank's load."""

    __slots__ = ("_per_context_token", "_per_sequence", "_per_token", "constants")

    def __init__(self, constants: CostConstants) -> None:
        self.constants = constants
        self._per_token = constants.prefill_seconds_per_token
        self._per_sequence = constants.decode_seconds_per_sequence
        self._per_context_token = constants.decode_seconds_per_context_token

    def seconds(self, load: Load, uncached_tokens: int) -> float:
        """The queue before this prompt, its own uncached prefill, interference by decodes."""
        return (
            (load.queued_tokens + uncached_tokens) * self._per_token
            + load.sequences * self._per_sequence
            + load.context_tokens * self._per_context_token
        )

    def terms(self, load: Load, uncached_tokens: int) -> CostTerms:
        """The same, apart."""
        return CostTerms(
            queue=load.queued_tokens * self._per_token,
            prefill=uncached_tokens * self._per_token,
            decodes=load.sequences * self._per_sequence + load.context_tokens * self._per_context_token,
        )
