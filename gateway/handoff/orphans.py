"""KV caches that a prefill worker keeps and that nobody may come for, until its lease is over."""

from __future__ import annotations

import asyncio
from collections import deque


class Orphans:
    """How many there are, at most: a worker that died keeps none, and nobody can tell from here."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._ends: deque[float] = deque()

    def add(self) -> None:
        """A handle will not be used any more, or may not have been."""
        self._ends.append(asyncio.get_running_loop().time() + self._lease_seconds)

    def __len__(self) -> int:
        while self._ends and self._ends[0] <= asyncio.get_running_loop().time():
            self._ends.popleft()
        return len(self._ends)
