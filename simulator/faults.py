"""What can be made to go wrong with a worker, by `POST /sim/fault`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec

KILLED = 137
"""Exit status as after SIGKILL."""
FOREVER = float("inf")

Exit = Callable[[int], None]


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults to set; what is not named stays as it is, null ends one. Times are seconds.

    `die`: end the process, connections cut: `now`, with the answer of the next prefill leg (`after_prefill`),
    or once `after_tokens` more tokens have come out. `freeze_seconds`: take requests and answer nothing, -1
    for ever. `slow_link`: bytes per second of this worker's READs. `drop_heartbeats`: send none and hear
    none. `refuse_count`, `refuse_seconds`: answer 503. `stale_parameters`: the next prefill legs that many
    return a former leg's parameters. `event_loss`: share of KV event batches that are not sent; `event_lag`:
    how much later they are.
    """

    die: Literal["now", "after_prefill", "after_tokens"] | msgspec.UnsetType | None = msgspec.UNSET
    after_tokens: int = 0
    freeze_seconds: float | msgspec.UnsetType | None = msgspec.UNSET
    slow_link: float | msgspec.UnsetType | None = msgspec.UNSET
    drop_heartbeats: bool | msgspec.UnsetType | None = msgspec.UNSET
    refuse_count: int | msgspec.UnsetType | None = msgspec.UNSET
    refuse_seconds: float | msgspec.UnsetType | None = msgspec.UNSET
    stale_parameters: int | msgspec.UnsetType | None = msgspec.UNSET
    event_loss: float | msgspec.UnsetType | None = msgspec.UNSET
    event_lag: float | msgspec.UnsetType | None = msgspec.UNSET


class Faults:
    """The faults in force."""

    def __init__(self, exit_process: Exit = os._exit) -> None:
        self.exit = exit_process

    def stale_parameters(self, answer: dict[str, Any]) -> dict[str, Any]:
        return answer

    async def slow_link(self, nbytes: int) -> float:
        return 0.0

    def drops_heartbeats(self) -> bool:
        return False
