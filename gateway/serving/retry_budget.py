"""How often a worker's refusal may be tried on another worker: retries must not double an overload."""

from __future__ import annotations

SHARE = 5
"""Requests that add one retry to the budget."""
MOST = 50
"""What can be saved up; the budget begins full."""


class RetryBudget:
    """A bucket that requests fill and retries empty. No clock: retries stay a share of the requests."""

    def __init__(self) -> None:
        self._left = MOST * SHARE

    def add_request(self) -> None:
        self._left = min(MOST * SHARE, self._left + 1)

    def take(self) -> bool:
        """Whether one more retry is in the budget, which it then takes."""
        if self._left < SHARE:
            return False
        self._left -= SHARE
        return True
