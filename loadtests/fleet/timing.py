"""How long an engine's step takes, and by how much it strays from that."""

from __future__ import annotations

from random import Random

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step. Prefill terms apply when it computes prompt tokens, decode terms when it decodes."""

    prefill_base: float
    per_token: float
    per_token_squared: float = 0.0
    """Times the square of the step's prompt tokens."""
    per_token_context: float = 0.0
    """Times prompt tokens times the tokens before them."""
    decode_base: float
    per_sequence: float = 0.0
    per_context_token: float = 0.0
    """Times the context of the sequences that decode."""
    per_context_token_squared: float = 0.0

    def prefill(self, tokens: int, token_contexts: float) -> float:
        """`token_contexts` is the sum over prompt tokens of the tokens before each."""
        if not tokens:
            return 0.0
        return (
            self.prefill_base
            + (self.per_token + self.per_token_squared * tokens) * tokens
            + self.per_token_context * token_contexts
        )

    def decode(self, sequences: int, context_tokens: int) -> float:
        if not sequences:
            return 0.0
        return (
            self.decode_base
            + self.per_sequence * sequences
            + (self.per_context_token + self.per_context_token_squared * context_tokens) * context_tokens
        )

    def alone(self, prompt_tokens: int, cached_tokens: int, step_tokens: int) -> float:
        """Seconds of a prompt's prefill on an idle engine that takes `step_tokens` a step."""
        seconds = 0.0
        done = cached_tokens
        while done < prompt_tokens:
            chunk = min(step_tokens, prompt_tokens - done)
            seconds += self.prefill(chunk, chunk * (done + chunk / 2))
            done += chunk
        return seconds


SERVER = Timing(
    prefill_base=0.02,
    per_token=1 / 12_000,
    per_token_context=1 / 12_000 / 60_000,
    decode_base=0.012,
    per_sequence=0.000_3,
    per_context_token=2e-7 / 512,
)
"""A large model on one node: 12k prompt tokens a second, half that at a context of 60k."""


def mocker_timing(capacity_tokens: int) -> Timing:
    """Dynamo's mock engine, fitted to what its offline replay reports for single requests (1.6.1).

    Its prefill knows no context; its decode goes by the share of the KV cache in use, not by the batch.
    """
    return Timing(
        prefill_base=0.016_501_4,
        per_token=1.518_34e-5,
        per_token_squared=4.21e-10,
        decode_base=0.005_74,
        per_context_token=0.054_01 / capacity_tokens,
        per_context_token_squared=-0.025_74 / capacity_tokens**2,
    )


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What no cost model knows."""

    speed_spread: float = 0.1
    """Each worker is slower by a factor drawn from 1 - spread to 1 + spread."""
    step_sigma: float = 0.15
    """Of the logarithm of a factor drawn for each step."""
    stall_chance: float = 0.000_5
    stall_seconds: float = 0.5
    """Longest extra time of a step that stalls."""


QUIET = Noise(speed_spread=0.0, step_sigma=0.0, stall_chance=0.0)


class Pace:
    """One worker's noise."""

    def __init__(self, noise: Noise, random: Random) -> None:
        self.speed = random.uniform(1 - noise.speed_spread, 1 + noise.speed_spread)
        self._noise = noise
        self._random = random

    def seconds(self, planned: float) -> float:
        """What a step takes that should take `planned` seconds."""
        noise = self._noise
        seconds = planned * self.speed
        if noise.step_sigma:
            seconds *= self._random.lognormvariate(0.0, noise.step_sigma)
        if noise.stall_chance and self._random.random() < noise.stall_chance:
            seconds += self._random.uniform(0.0, noise.stall_seconds)
        return seconds
