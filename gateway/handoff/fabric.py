"""The pairs of a fleet: which can be made, what lies between them, and what has been measured of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.config import LinkClass, Role
from gateway.engines.vllm import VllmEngine
from gateway.fleet.vitals import Transfers, Vitals
from gateway.fleet.worker import Worker
from gateway.handoff.links import KvSize, Link, LinkCost, is_slow, link_class
from gateway.handoff.pairs import Traits, obstacle
from gateway.handoff.side_channel import Shaken, SideChannelError, shake
from parsers.base import KvShape

logger = logging.getLogger(__name__)

DEFAULT_BLOCK = 64
"""Tokens in a block where no worker says it."""


class FabricPool(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool says of the KV caches that its workers hand over."""

    shape: KvShape | None = None
    required_link: LinkClass | None = None


class _Member:
    def __init__(self, worker: Worker) -> None:
        profile = worker.profile
        assert profile is not None
        self.name = worker.name
        self.pool = worker.settings.pool
        self.role: Role = worker.role
        self.worker = worker
        self.traits = Traits(
            engine=profile.engine,
            version=profile.version,
            block_size=profile.block_size,
            layout=profile.layout,
            speculation=profile.speculation,
            labels=worker.settings.labels,
        )
        self.transfers: Transfers | None = None
        """The worker's counters when they were last read."""
        self.shaken: Shaken | None = None
        self.asked = ""
        """Address of the side channel that was asked last."""


class Fabric:
    """Knows every pair of ready workers; told of changes by the fleet, asked by whoever places requests."""

    def __init__(
        self, pools: Mapping[str, FabricPool], measured: Mapping[tuple[str, str], LinkCost] | None = None
    ) -> None:
        """`measured`: a probe's results by names of prefill and decode worker."""
        self._pools = pools
        self._measured = measured or {}
        self._members: dict[str, _Member] = {}
        self._partners: dict[str, dict[str, Link]] = {}
        """By decode worker, the prefill workers that can hand over to it."""
        self.obstacles: dict[tuple[str, str], str] = {}
        """By (prefill, decode), why they are no pair."""
        self.unpaired: frozenset[str] = frozenset()
        """Decode workers that no prefill worker fits: nothing is decoded there."""
        self.slow: dict[str, bool] = {}
        """By decode worker: its transfers are far under what its links should give."""
        self.transfers: dict[str, Transfers] = {}
        """By decode worker: what came between the last two readings that differ."""
        self._tasks: set[asyncio.Task[None]] = set()

    # what the fleet tells

    def joined(self, worker: Worker) -> None:
        """A worker is ready; its profile is known."""
        self._members[worker.name] = _Member(worker)
        self._rebuild()
        self._shake_hands(self._members[worker.name])

    def left(self, worker: Worker) -> None:
        if self._members.pop(worker.name, None) is not None:
            self._rebuild()

    def looked(self, worker: Worker, vitals: Vitals) -> None:
        """A worker's metrics were read."""
        member = self._members.get(worker.name)
        if member is None:
            return
        self._shake_hands(member)
        if vitals.transfers is None:
            return
        before, member.transfers = member.transfers, vitals.transfers
        if before is not None and vitals.transfers != before:
            self._transferred(member, vitals.transfers.since(before))

    # what placement asks

    def to_decode(self, prompt_tokens: int) -> Mapping[str, float]:
        """Seconds of a prompt's transfer to each decode worker, from the best of its partners."""
        seconds = {}
        for decode, links in self._partners.items():
            if links:
                size = self._size(decode, prompt_tokens)
                seconds[decode] = min(link.seconds(size) for link in links.values())
        return seconds

    def from_prefill(self, decode: str, prompt_tokens: int) -> tuple[frozenset[str], Mapping[str, float]]:
        """The prefill workers that do not fit a decode worker; seconds from each of the others."""
        links = self._partners.get(decode)
        if links is None:
            return frozenset(), {}
        size = self._size(decode, prompt_tokens)
        out = frozenset(prefill for prefill, other in self.obstacles if other == decode)
        return out, {prefill: link.seconds(size) for prefill, link in links.items()}

    def handed_over(self, prefill: str, decode: str, prompt_tokens: int, seconds: float) -> None:
        """A request's time from prefill's answer to decode's first token."""
        link = self._partners.get(decode, {}).get(prefill)
        if link is not None:
            link.handed_over(self._size(decode, prompt_tokens), seconds)

    # what people ask

    def shaken(self, name: str) -> Shaken | None:
        """What a worker's side channel told, if it was asked and answered."""
        member = self._members.get(name)
        return member.shaken if member is not None else None

    def describe(self) -> list[dict[str, Any]]:
        """Every pair, the impossible ones too."""
        pairs: list[dict[str, Any]] = []
        for decode, links in sorted(self._partners.items()):
            for prefill, link in sorted(links.items()):
                pairs.append(
                    {
                        "prefill": prefill,
                        "decode": decode,
                        "link": link.kind,
                        "cost": msgspec.to_builtins(link.cost),
                        "probed": link.measured is not None,
                        "factor": round(link.factor, 3),
                        "rest_seconds": round(link.rest, 6),
                        "slow": self.slow.get(decode, False),
                    }
                )
        pairs += [
            {"prefill": prefill, "decode": decode, "obstacle": reason}
            for (prefill, decode), reason in sorted(self.obstacles.items())
        ]
        return pairs

    def metrics(self) -> Iterator[Metric]:
        """Links and pairs that cannot be made."""
        labels = ["prefill", "decode"]
        links = GaugeMetricFamily(
            "kvgateway_link_factor", "Reported over predicted transfer time.", labels=[*labels, "link"]
        )
        for decode, partners in self._partners.items():
            for prefill, link in partners.items():
                links.add_metric([prefill, decode, link.kind], link.factor)
        yield links
        obstacles = GaugeMetricFamily(
            "kvgateway_pair_obstacle", "1 for a pair that cannot be made.", labels=[*labels, "reason"]
        )
        for (prefill, decode), reason in self.obstacles.items():
            obstacles.add_metric([prefill, decode, reason.partition(":")[0]], 1)
        yield obstacles
        slow = GaugeMetricFamily(
            "kvgateway_link_slow", "1 when transfers are far under their link's class.", labels=["decode"]
        )
        for decode, is_so in self.slow.items():
            slow.add_metric([decode], float(is_so))
        yield slow
        moved = CounterMetricFamily(
            "kvgateway_kv_bytes_transferred", "KV bytes that a worker read from others.", labels=["worker"]
        )
        for name, member in self._members.items():
            if member.transfers is not None:
                moved.add_metric([name], member.transfers.bytes)
        yield moved

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # inside

    def _of(self, role: Role) -> Sequence[_Member]:
        return [member for member in self._members.values() if member.role == role]

    def _rebuild(self) -> None:
        """Links keep what they have learned."""
        partners: dict[str, dict[str, Link]] = {}
        obstacles: dict[tuple[str, str], str] = {}
        for decode in self._of("decode"):
            partners[decode.name] = {}
            for prefill in self._of("prefill"):
                if prefill.pool != decode.pool:
                    continue
                key = prefill.name, decode.name
                required = self._pool(decode).required_link
                reason = obstacle(prefill.traits, decode.traits, required)
                if reason is not None:
                    obstacles[key] = reason
                    if self.obstacles.get(key) != reason:
                        logger.warning("%s and %s are no pair: %s", *key, reason)
                    continue
                kind = link_class(prefill.traits.labels, decode.traits.labels)
                old = self._partners.get(decode.name, {}).get(prefill.name)
                partners[decode.name][prefill.name] = old or Link(kind, self._measured.get(key))
        self._partners, self.obstacles = partners, obstacles
        fitted = {decode for decode, links in partners.items() if links}
        self.unpaired = frozenset(decode for _, decode in obstacles if decode not in fitted)
        self.slow = {name: slow for name, slow in self.slow.items() if name in partners}

    def _pool(self, member: _Member) -> FabricPool:
        return self._pools.get(member.pool) or FabricPool()

    def _size(self, decode: str, prompt_tokens: int) -> KvSize:
        member = self._members[decode]
        shape = self._pool(member).shape
        if shape is None:
            return KvSize(0, 0)
        block = member.traits.block_size or DEFAULT_BLOCK
        return KvSize(shape.bytes_of(prompt_tokens), shape.pieces_of(prompt_tokens, block))

    def _transferred(self, member: _Member, came: Transfers) -> None:
        links = self._partners.get(member.name, {})
        if not came.count or not links:
            return
        self.transfers[member.name] = came
        size = KvSize(came.bytes, came.descriptors)
        for link in links.values():
            link.reported(size, came.count, came.seconds)
        kinds = {link.kind for link in links.values()}
        slow = all(is_slow(kind, came.bytes, came.count, came.seconds) for kind in kinds)
        if slow and not self.slow.get(member.name):
            logger.warning(
                "transfers to %s reach %.2f GB/s: the path is not %s",
                *(member.name, came.bytes / came.seconds / 1e9, " or ".join(sorted(kinds))),
            )
        self.slow[member.name] = slow

    def _shake_hands(self, member: _Member) -> None:
        """Ask a vLLM worker's side channel once it is known; every address is asked once a life."""
        address = side_channel(member.worker)
        if address is None or address == member.asked:
            return
        member.asked = address
        task = asyncio.get_running_loop().create_task(self._compare(member, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compare(self, member: _Member, address: str) -> None:
        try:
            member.shaken = await shake(address)
        except SideChannelError as error:
            logger.warning("side channel of %s: %s", member.name, error)
            return
        member.traits = msgspec.structs.replace(member.traits, compatibility=member.shaken.compatibility)
        if self._members.get(member.name) is member:
            self._rebuild()


def side_channel(worker: Worker) -> str | None:
    """HOST:PORT of a worker's side channel: as configured, else as its prefill answers said."""
    if worker.settings.side_channel is not None:
        return worker.settings.side_channel
    engine = worker.engine
    return min(engine.side_channels, default=None) if isinstance(engine, VllmEngine) else None
