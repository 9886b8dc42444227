"""The usage object of an answer: the gateway's own count, and the worker's cached tokens."""

from __future__ import annotations

import msgspec

from gateway.serving.generation import Generation


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


def usage_of(generation: Generation, prompt_tokens: int) -> Usage:
    """Usage of all choices together; `prompt_tokens` counts the prompt once."""
    cached = generation.usage.cached_tokens if generation.usage is not None else None
    completion = generation.completion_tokens
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
        prompt_tokens_details=PromptTokensDetails(min(cached or 0, prompt_tokens)),
        completion_tokens_details=CompletionTokensDetails(generation.reasoning_tokens),
    )
