"""What an operator chooses of routing, beside the policy."""

from __future__ import annotations

import msgspec

from router.sessions import SessionMode


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults ask for nothing."""

    session_mode: SessionMode = "soft"
    """Hard: a session's requests wait for its rank. Soft: while that is full or busy, another takes them."""
    session_seconds: float = 3600.0
    """Since its last request, for which a session is remembered."""
    busy_queued_tokens: float = float("inf")
    """Prompt tokens in a rank's queue from which on it is passed over while others have fewer."""
    local_prefill_tokens: int = 0
    """Uncached prompt tokens up to which a decode worker computes a prompt itself; 0 for never."""
