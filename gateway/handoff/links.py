"""What carries a KV cache between two workers, and how long that takes. Pure: labels in, seconds out.

seconds = t0 + descriptors x seconds a descriptor + bytes / bandwidth, times what measurements have shown,
plus what the pair has needed beside that. A descriptor is one piece of memory of one layer: many small ones
can cost more than their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import msgspec

from gateway.config import LinkClass

ORDER: tuple[LinkClass, ...] = get_args(LinkClass)
"""Best first."""

CLIQUE, DOMAIN, CUMEM = "nvlink_clique", "compute_domain", "cumem"
HOST, NVLINK, RDMA = "host", "nvlink", "rdma"
LABELS = (CLIQUE, DOMAIN, CUMEM, HOST, NVLINK, RDMA)
"""Worker labels that are read here; the last four and `cumem` are "true" or absent, `host` is a name."""

WEIGHT = 0.2
"""Of the latest observation."""
SLOWER, FASTER = 1000.0, 0.1
"""Bounds of what a measurement may make of a prior."""
SLOW_SHARE = 0.1
"""A link that gives less than this share of its class's bandwidth has lost its path."""
TELLING_BYTES = 4 * 1024 * 1024
"""Smaller transfers say more of descriptors than of bandwidth."""


class LinkCost(msgspec.Struct, frozen=True):
    """A straight line through transfer times."""

    t0: float
    """Seconds of any transfer."""
    descriptor: float
    """Seconds a descriptor."""
    bandwidth: float
    """Bytes a second."""

    def seconds(self, nbytes: float, descriptors: float) -> float:
        return self.t0 + descriptors * self.descriptor + nbytes / self.bandwidth


PRIORS: Mapping[LinkClass, LinkCost] = {
    # Measured: two GPUs of one host (251 GB/s, 7.5 us a descriptor; host memory 4.2 GB/s), an engine's
    # transfers over them (1 ms before the first byte), shared memory and sockets of one host. Across nodes
    # NVLink is taken to be as inside one; a descriptor on a network card costs a twentieth of that.
    "mnnvl": LinkCost(1e-3, 7.5e-6, 251e9),
    "nvlink": LinkCost(1e-3, 7.5e-6, 251e9),
    "rdma": LinkCost(1e-3, 0.4e-6, 49e9),
    "shm": LinkCost(1e-3, 6.7e-6, 4.2e9),
    "tcp": LinkCost(2e-3, 10e-6, 0.4e9),
}


def link_class(a: Mapping[str, str], b: Mapping[str, str]) -> LinkClass:
    """What two workers with these labels have between them.

    NVLink across nodes needs one clique, one ComputeDomain (its channel) and memory that can be exported
    (vLLM's --enable-cumem-allocator): without the last UCX takes sockets and says nothing.
    """

    def same(label: str) -> bool:
        return label in a and a[label] == b.get(label)

    def both(label: str) -> bool:
        return a.get(label) == b.get(label) == "true"

    if same(CLIQUE) and same(DOMAIN) and both(CUMEM):
        return "mnnvl"
    if same(HOST):
        return "nvlink" if both(NVLINK) else "shm"
    known = both(RDMA) or all(CLIQUE in labels or DOMAIN in labels for labels in (a, b))
    return "rdma" if known else "tcp"  # machines with NVLink domains have network cards


def at_least(link: LinkClass, wanted: LinkClass) -> bool:
    """Whether a link is of the wanted class or a better one."""
    return ORDER.index(link) <= ORDER.index(wanted)


class KvSize(msgspec.Struct, frozen=True):
    """What one transfer moves."""

    bytes: float
    descriptors: float


class Link:
    """The way between one prefill and one decode worker."""

    __slots__ = ("cost", "factor", "kind", "measured", "reports", "rest", "seen")

    def __init__(self, kind: LinkClass, measured: LinkCost | None = None) -> None:
        """`measured` is a probe's, and is believed before the class's prior."""
        self.kind = kind
        self.measured = measured
        self.cost = measured or PRIORS[kind]
        self.reports = 0
        self.factor = 1.0
        """Seconds that the decode worker reported for each predicted one."""
        self.rest = 0.0
        """Seconds from prefill's answer to decode's first token that the transfer does not explain."""
        self.seen = 0

    def seconds(self, size: KvSize) -> float:
        """Predicted time of a transfer."""
        return self.factor * self.cost.seconds(size.bytes, size.descriptors) + self.rest

    def reported(self, size: KvSize, count: float, seconds: float) -> None:
        """The decode worker's transfers: how many, what they moved in all, and how long they took."""
        expected = count * self.cost.t0 + self.cost.seconds(size.bytes, size.descriptors) - self.cost.t0
        ratio = min(max(seconds / expected, FASTER), SLOWER)
        self.factor += (ratio - self.factor) * (WEIGHT if self.reports else 1.0)
        self.reports += 1

    def handed_over(self, size: KvSize, seconds: float) -> None:
        """One request: from prefill's answer to decode's first token."""
        rest = max(seconds - self.factor * self.cost.seconds(size.bytes, size.descriptors), 0.0)
        self.rest += (rest - self.rest) * (WEIGHT if self.seen else 1.0)
        self.seen += 1


def is_slow(kind: LinkClass, nbytes: float, count: float, seconds: float) -> bool:
    """Transfers that are far under what the class gives, and large enough to tell."""
    if not count or not seconds or nbytes / count < TELLING_BYTES:
        return False
    return nbytes / seconds < SLOW_SHARE * PRIORS[kind].bandwidth
