"""Sampling parameters whose limits come from the model or from another field.

A token id outside the vocabulary makes a vLLM engine die on the spot, with all that it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.serving.errors import bad_request


def check_sampling(values: Mapping[str, Any], max_tokens: int, vocabulary_size: int) -> None:
    """Raises RequestError that names the field."""
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        if ids := values.get(name):
            highest = max(map(int, ids))
            if highest >= vocabulary_size:
                message = f"`{name}`: {highest} is not a token id, which are below {vocabulary_size}."
                raise bad_request(message, name, "invalid_value")
    if values.get("min_tokens", 0) > max_tokens:
        message = f"`min_tokens` is more than the {max_tokens} tokens that the answer may have."
        raise bad_request(message, "min_tokens", "invalid_value")
