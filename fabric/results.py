"""What a probe measured, as a file: written by `kvgateway fabric-probe run`, read by `kvgateway serve`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One shape of transfer, the median of some."""

    pieces: int
    piece_bytes: int
    seconds: float

    @property
    def bytes(self) -> int:
        return self.pieces * self.piece_bytes


class MeasuredLink(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of workers."""

    prefill: str
    decode: str
    t0: float
    """Seconds of the smallest transfer."""
    descriptor: float
    """Seconds a descriptor."""
    bandwidth: float
    """Bytes a second."""
    transport: str = ""
    """What carried the bytes, in UCX's words."""
    memory: str = ""
    timings: Sequence[Timing] = ()


class LinksFile(msgspec.Struct, frozen=True):
    links: Sequence[MeasuredLink]


def fit(timings: Sequence[Timing]) -> tuple[float, float, float]:
    """(t0, seconds a descriptor, bytes a second) through contiguous and scattered transfers.

    Raises ValueError: there are none of one kind.
    """
    whole = sorted((each for each in timings if each.pieces == 1), key=lambda each: each.bytes)
    scattered = [each for each in timings if each.pieces > 1]
    if len(whole) < 2 or not scattered:
        raise ValueError("it takes two contiguous transfers and a scattered one")
    smallest, largest = whole[0], whole[-1]
    slope = max(largest.seconds - smallest.seconds, 1e-9) / max(largest.bytes - smallest.bytes, 1)
    bandwidth = 1 / slope
    t0 = max(smallest.seconds - smallest.bytes / bandwidth, 0.0)
    each = [(one.seconds - t0 - one.bytes / bandwidth) / one.pieces for one in scattered]
    return t0, max(min(each), 0.0), bandwidth
