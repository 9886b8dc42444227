"""The usage object of an answer: the gateway's own count, and the worker's cached tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.serving.flight import Flight


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


def usage_of(flight: Flight, prompt_tokens: int) -> Usage:
    """Usage of all choices together; `prompt_tokens` counts the prompt once."""
    generation = flight.generation
    completion = generation.completion_tokens
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        total_tokens=prompt_tokens + completion,
        prompt_tokens_details=PromptTokensDetails(_within(flight.cached_tokens or 0, prompt_tokens)),
        completion_tokens_details=CompletionTokensDetails(generation.reasoning_tokens),
    )


def usage_of_choices(flight: Flight, whole: Usage) -> list[Usage]:
    """Usage of each choice; the prompt counts for each."""
    choices = flight.generation.choices
    if len(choices) == 1:
        return [whole]
    return [
        Usage(
            prompt_tokens=whole.prompt_tokens,
            completion_tokens=choice.tokens,
            total_tokens=whole.prompt_tokens + choice.tokens,
            prompt_tokens_details=whole.prompt_tokens_details,
            completion_tokens_details=CompletionTokensDetails(choice.parser.reasoning_tokens),
        )
        for choice in choices
    ]


def usage_headers(prompt_tokens: int, cached_tokens: int | None) -> dict[str, str]:
    """What the vendor's answers tell in their head, as far as it is known."""
    headers = {"X-Msh-Usage-Prompt-Tokens": str(prompt_tokens)}
    if cached_tokens is not None:
        headers["X-Msh-Usage-Cached-Tokens"] = str(_within(cached_tokens, prompt_tokens))
    return headers


def _within(cached_tokens: int, prompt_tokens: int) -> int:
    """What a worker said, as far as it can be."""
    return min(max(cached_tokens, 0), prompt_tokens)


def sum_of(usages: Sequence[Usage]) -> Usage:
    """Of several answers together."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        total_tokens=sum(usage.total_tokens for usage in usages),
        prompt_tokens_details=PromptTokensDetails(
            sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
        ),
        completion_tokens_details=CompletionTokensDetails(
            sum(usage.completion_tokens_details.reasoning_tokens for usage in usages)
        ),
    )
