"""What a worker's /metrics say of its process, its cache and the KV blocks that it read from others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

STARTED = "process_start_time_seconds"
CACHE = "vllm:cache_config_info"
TRANSFERS = {
    "count": "vllm:nixl_xfer_time_seconds_count",
    "seconds": "vllm:nixl_xfer_time_seconds_sum",
    "bytes": "vllm:nixl_bytes_transferred_sum",
    "descriptors": "vllm:nixl_num_descriptors_sum",
    "failed": "vllm:nixl_num_failed_transfers_total",
    "expired": "vllm:nixl_num_kv_expired_reqs_total",
    "late": "vllm:nixl_num_notifications_after_expiry_total",
}
WANTED = frozenset((STARTED, CACHE, *TRANSFERS.values()))

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Transfers(msgspec.Struct, frozen=True):
    """KV transfers since the worker's start, over all its ranks."""

    count: float = 0
    seconds: float = 0
    bytes: float = 0
    descriptors: float = 0
    failed: float = 0
    expired: float = 0
    """Prefills whose blocks nobody read before their lease ran out."""
    late: float = 0
    """Reads that ended after the lease: what they read may be another prompt's."""

    def since(self, before: Transfers) -> Transfers:
        """What came after `before`; all of it when the counters began anew."""
        if self.count < before.count:
            return self
        fields = self.__struct_fields__
        return Transfers(*(getattr(self, name) - getattr(before, name) for name in fields))


class Vitals(msgspec.Struct, frozen=True):
    """A reading of one page."""

    started: float | None = None
    """Unix time at which the process began: another one is another life."""
    block_size: int | None = None
    engines: int = 1
    """Data-parallel ranks behind the address."""
    transfers: Transfers | None = None
    """None where the worker has no connector that counts them."""


def read_vitals(page: str) -> Vitals:
    """A Prometheus text page; what it lacks is None."""
    started, cache, counts = None, [], dict[str, float]()
    for name, labels, value in _samples(page):
        if name == STARTED:
            started = value
        elif name == CACHE:
            cache.append(labels)
        else:
            counts[name] = counts.get(name, 0.0) + value
    transfers = Transfers(*(counts.get(name, 0.0) for name in TRANSFERS.values())) if counts else None
    sizes = [int(labels["block_size"]) for labels in cache if labels.get("block_size", "").isdecimal()]
    engines = len({labels.get("engine", "0") for labels in cache})
    return Vitals(started, sizes[0] if sizes else None, max(engines, 1), transfers)


def _samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for line in page.splitlines():
        if line.partition("{")[0].partition(" ")[0] not in WANTED:
            continue
        found = _SAMPLE.match(line)
        if found is not None:
            yield found[1], dict(_LABEL.findall(found[2] or "")), float(found[3])
