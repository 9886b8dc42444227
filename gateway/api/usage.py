"""The usage object of an answer: the gateway's own count, and the worker's cached tokens."""

from __future__ import annotations

import msgspec

from gateway.serving.inflight import InFlight


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_of(flight: InFlight, prompt_tokens: int) -> Usage:
    """Usage of all choices together; `prompt_tokens` counts the prompt once."""
    generation = flight.generation
    assert generation is not None
    completion = generation.completion_tokens
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
        prompt_tokens_details=PromptTokensDetails(min(flight.cached_tokens or 0, prompt_tokens)),
        completion_tokens_details=CompletionTokensDetails(generation.reasoning_tokens),
    )
