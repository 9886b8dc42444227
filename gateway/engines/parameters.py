"""Sampling parameters by the names that each worker endpoint gives them.

The gateway's own names are those of vLLM's OpenAI API.
"""

from __future__ import annotations

from collections.abc import Mapping

IMAGES = "images"
"""Not a parameter, but needed of an endpoint like one."""

PROMPT_LOGPROBS = "prompt_logprobs"

GENERATE_NAMES: Mapping[str, str] = {"vllm_xargs": "extra_args"}
"""What vLLM's generate endpoint calls otherwise."""

SGLANG_NAMES: Mapping[str, str | None] = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "allowed_token_ids": None,
    "bad_words": None,
    "repetition_detection": None,
    "thinking_token_budget": None,
    "vllm_xargs": None,
    "watermarking": None,
}
"""What SGLang calls otherwise; None for what it does not have: it refuses names that it does not know."""


def absent_from(endpoint: str) -> frozenset[str]:
    """Sampling parameters that cannot reach a worker by that endpoint."""
    if endpoint == "completions":
        return frozenset((IMAGES,))
    if endpoint != "sglang":
        return frozenset()
    absent = {name for name, theirs in SGLANG_NAMES.items() if theirs is None}
    return frozenset(absent | {PROMPT_LOGPROBS})
