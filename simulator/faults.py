"""What can be made to go wrong with a worker, by `POST /sim/fault`."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

DEATH_STATUS = 137
"""As after SIGKILL."""


class Faults:
    """The faults in force. `die` ends the process at once, its connections cut."""

    def __init__(self, die: Callable[[int], None] = os._exit) -> None:
        self._die = die

    def stale_parameters(self, answer: dict[str, Any]) -> dict[str, Any]:
        return answer

    async def slow_link(self, nbytes: int) -> float:
        return 0.0

    def drops_heartbeats(self) -> bool:
        return False
