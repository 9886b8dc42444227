"""Which workers the demo starts."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config import Role


class Seat(NamedTuple):
    """One worker to start."""

    name: str
    role: Role


def _pair(prefill: int, decode: int) -> tuple[Seat, ...]:
    return (
        *(Seat(f"prefill-{number}", "prefill") for number in range(prefill)),
        *(Seat(f"decode-{number}", "decode") for number in range(decode)),
    )


TOPOLOGIES: dict[str, tuple[Seat, ...]] = {
    "agg": (Seat("sim-0", "aggregated"), Seat("sim-1", "aggregated")),
    "1p1d": _pair(1, 1),
    "1p2d": _pair(1, 2),
    "2p1d": _pair(2, 1),
}

DEFAULT_TOPOLOGY = "1p2d"
"""One prefill worker for two decode workers: a disaggregated rack in small."""
TRANSPORTS = ("auto", "nixl", "inline")
