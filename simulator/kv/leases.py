"""Blocks that a prefill worker keeps for others: until they were read, or their lease runs out.

The clock is the loop's. A lease is `seconds` long; a heartbeat moves its end to at least two thirds of that
from now, never nearer (vLLM 0.32). The reader is expected to send one every sixth of a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

HEARTBEATS_PER_LEASE = 6
RENEWED_SHARE = 2 / 3


class _Pin:
    def __init__(self, release: Callable[[], None], blocks: int, expires: float) -> None:
        self.release = release
        self.blocks = blocks
        self.expires = expires
        self.notified = 0


class Leases:
    """What is pinned, by the request id that the reader knows."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expired = 0
        """Requests whose lease ran out unread."""
        self.late_notifications = 0
        """Notifications for requests that are not pinned any more: what was read may have been wrong."""
        self.heartbeats = 0
        self._pins: dict[str, _Pin] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def heartbeat_seconds(self) -> float:
        """How often a reader should send a heartbeat."""
        return self.seconds / HEARTBEATS_PER_LEASE

    @property
    def blocks(self) -> int:
        """Pinned blocks."""
        return sum(pin.blocks for pin in self._pins.values())

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pins

    def pin(self, request_id: str, blocks: int, release: Callable[[], None]) -> None:
        """Keep a request's blocks; `release` is called once, when they may go."""
        self._pins[request_id] = _Pin(release, blocks, self._now() + self.seconds)
        self._schedule()

    def heartbeat(self, request_ids: Iterable[str]) -> None:
        """A reader still wants these."""
        self.heartbeats += 1
        for request_id in request_ids:
            if request_id in self._pins:
                pin = self._pins[request_id]
                pin.expires = max(pin.expires, self._now() + self.seconds * RENEWED_SHARE)

    def notified(self, request_id: str, consumers: int) -> None:
        """One of `consumers` readers has what it needs."""
        pin = self._pins.get(request_id)
        if pin is None:
            self.late_notifications += 1
            return
        pin.notified += 1
        if pin.notified >= consumers:
            del self._pins[request_id]
            pin.release()

    def close(self) -> None:
        """Release everything."""
        if self._timer is not None:
            self._timer.cancel()
        while self._pins:
            self._pins.popitem()[1].release()

    def _schedule(self) -> None:
        if self._timer is None and self._pins:
            soonest = min(pin.expires for pin in self._pins.values())
            self._timer = asyncio.get_running_loop().call_at(soonest, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._now()
        for request_id in [key for key, pin in self._pins.items() if pin.expires <= now]:
            self.expired += 1
            self._pins.pop(request_id).release()
        self._schedule()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
