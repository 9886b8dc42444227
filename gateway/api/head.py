"""What a renderer knows before its answer begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.serving.job import Details


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Of one answer."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    choices: int
    prompt_tokens: int
    """As usage counts them."""
    details: Details | None = None
    strict_vendor: bool = False
    values: Mapping[str, Any] = {}
    """Checked values of the request's fields."""
