"""Metrics of KV transfers: vLLM's series, and `sim_` ones for what a real engine cannot know.

Series of an inline transport carry the label transport="inline", for it is not NIXL that they tell of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simulator.kv.stats import Histogram

if TYPE_CHECKING:
    from simulator.engine import Engine

Value = float | Histogram


class Family(NamedTuple):
    """A metric's name, type, help and value."""

    name: str
    kind: str
    text: str
    value: Value


def render(engines: Sequence[Engine], model: str) -> str:
    """The page's lines, in the Prometheus text format; `engines` in the order of their ranks."""
    lines: list[str] = []
    for families in zip(*map(_families, engines), strict=True):
        first = families[0]
        lines += [f"# HELP {first.name} {first.text}", f"# TYPE {first.name} {first.kind}"]
        for number, (engine, family) in enumerate(zip(engines, families, strict=True)):
            labels = f'engine="{number}",model_name="{_escape(model)}"'
            if engine.handoff is not None and engine.handoff.transport.label != "nixl":
                labels += f',transport="{engine.handoff.transport.label}"'
            lines += _samples(family, labels)
    return "\n".join(lines) + "\n"


def _families(engine: Engine) -> Iterator[Family]:
    yield Family(
        "sim_kv_violations_total",
        "counter",
        "Blocks that an answer began with and that were not what its prompt needs.",
        engine.memory.violations,
    )
    handoff = engine.handoff
    if handoff is None:
        return
    stats, leases = handoff.stats, handoff.leases

    def count(name: str, text: str, value: float) -> Family:
        return Family(f"vllm:nixl_{name}_total", "counter", text, value)

    def histogram(name: str, text: str, value: Histogram) -> Family:
        return Family(f"vllm:nixl_{name}", "histogram", text, value)

    yield histogram("xfer_time_seconds", "Time of a READ until its bytes were there.", stats.seconds)
    yield histogram("post_time_seconds", "Time of the call that starts a READ.", stats.post_seconds)
    yield histogram("bytes_transferred", "Bytes of a READ.", stats.nbytes)
    yield histogram("num_descriptors", "Descriptors of a READ.", stats.descriptors)
    yield count("num_failed_transfers", "READs that failed.", stats.failed_transfers)
    yield count("num_failed_notifications", "Notifications that failed.", stats.failed_notifications)
    yield count("num_kv_expired_reqs", "Prefill legs whose lease ran out.", leases.expired)
    yield count(
        "num_notifications_after_expiry", "Notifications that came too late.", leases.late_notifications
    )

    def gauge(name: str, text: str, value: float) -> Family:
        return Family(f"sim_kv_{name}", "gauge", text, value)

    yield gauge("pinned_requests", "Prefill legs whose blocks wait to be read.", len(leases))
    yield gauge("pinned_blocks", "Blocks that wait to be read.", leases.blocks)


def _samples(family: Family, labels: str) -> Iterator[str]:
    value = family.value
    if not isinstance(value, Histogram):
        yield f"{family.name}{{{labels}}} {float(value)}"
        return
    below = 0
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        below += count
        shown = "+Inf" if bound == float("inf") else str(bound)
        yield f'{family.name}_bucket{{{labels},le="{shown}"}} {float(below)}'
    yield f"{family.name}_count{{{labels}}} {float(value.count)}"
    yield f"{family.name}_sum{{{labels}}} {value.sum}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
