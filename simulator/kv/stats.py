"""Counts of what a worker moved, and vLLM's names for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from simulator.kv.transport import Transfer

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
BYTES = tuple(float(2**power) for power in range(11, 35, 2))
DESCRIPTORS = (
    10.0,
    20.0,
    30.0,
    50.0,
    75.0,
    100.0,
    200.0,
    400.0,
    1000.0,
    2000.0,
    4000.0,
    10000.0,
    20000.0,
    50000.0,
)


class Histogram:
    """A Prometheus histogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Observations."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class TransferStats:
    """What one worker read from its peers."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.post_seconds = Histogram(SECONDS)
        self.nbytes = Histogram(BYTES)
        self.descriptors = Histogram(DESCRIPTORS)
        self.failed_transfers = 0
        self.failed_notifications = 0
        self.handshakes = 0

    def moved(self, transfer: Transfer) -> None:
        """Count a READ."""
        self.seconds.observe(transfer.seconds)
        self.post_seconds.observe(transfer.post_seconds)
        self.nbytes.observe(transfer.nbytes)
        self.descriptors.observe(transfer.descriptors)
