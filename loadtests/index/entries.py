"""What the scorecard claims of the index: CPU of ours over Dynamo's, at the worst number of workers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from loadtests.index.bench import OUR_COMMAND, Bench
from loadtests.index.child import Order
from loadtests.scorecard.entries import DYNAMO, OURS
from loadtests.scorecard.evaluate import UNIT, Measurement
from loadtests.scorecard.servers import AbsentError

WORKERS = (8, 64, 512)
EVENT_BLOCKS = 16_384
BLOCKS_PER_EVENT = 8


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds when the ratio of the medians is at most `target` at every number of workers."""

    name: str
    what: str
    order: Order
    target: float
    peer: str = DYNAMO

    def at(self, workers: int) -> Order:
        return msgspec.structs.replace(self.order, workers=workers)


def _lookup(name: str, tokens: int, faster: float) -> IndexEntry:
    order = Order("find", 0, tokens=tokens)
    what = f"tokens to depth by worker, {tokens} tokens in blocks of 64"
    return IndexEntry(name=name, what=what, order=order, target=round(1 / faster, 3))


INDEX_ENTRIES = (
    _lookup("index_lookup_1k", 1_024, 2.0),
    _lookup("index_lookup_8k", 8_192, 2.0),
    _lookup("index_lookup_64k", 65_536, 3.0),
    _lookup("index_lookup_1m", 1_048_576, 3.5),
    IndexEntry(
        name="index_event",
        what=f"raw event payload of {BLOCKS_PER_EVENT} blocks of 64 tokens to index",
        order=Order("events", 0, blocks=EVENT_BLOCKS, per_event=BLOCKS_PER_EVENT),
        target=round(1 / 1.3, 3),
    ),
)

Samples = Mapping[tuple[str, int, str], list[float]]
"""Microseconds by entry, workers and index."""


def run_index(
    entries: Sequence[IndexEntry],
    repetitions: int,
    peers: Path,
    ours: Sequence[str] = OUR_COMMAND,
    workers: Sequence[int] = WORKERS,
) -> list[Measurement]:
    """Measure and evaluate; without Dynamo, or with a wrong answer, nothing holds or fails."""
    try:
        samples = _measure(entries, repetitions, Bench(peers, ours), workers)
    except AbsentError as reason:
        return [_measurement(entry, None, str(reason)) for entry in entries]
    return [_evaluate(entry, samples, workers) for entry in entries]


def _measure(
    entries: Sequence[IndexEntry], repetitions: int, bench: Bench, workers: Sequence[int]
) -> Samples:
    """Repetitions outside, entries and indexes inside, who is first in turns."""
    samples: dict[tuple[str, int, str], list[float]] = {}
    with bench:
        for count in workers:
            if any(entry.order.do == "find" for entry in entries):
                for name in (OURS, DYNAMO):
                    bench.ask(name, Order("load", count))
            for repetition in range(repetitions):
                for entry in entries:
                    for name in (OURS, DYNAMO)[:: 1 if repetition % 2 else -1]:
                        spent = bench.ask(name, entry.at(count)).cpu_us
                        samples.setdefault((entry.name, count, name), []).append(spent)
                        print(f"[scorecard] {entry.name} {count} {name} {spent:.1f} us", file=sys.stderr)
    return samples


def _evaluate(entry: IndexEntry, samples: Samples, workers: Sequence[int]) -> Measurement:
    ratios, parts = [], []
    for count in workers:
        mine, peers = (median(samples[entry.name, count, name]) for name in (OURS, DYNAMO))
        ratios.append(mine / peers)
        parts.append(f"{count} workers {OURS} {mine:.1f} us, {DYNAMO} {peers:.1f} us")
    repetitions = len(samples[entry.name, workers[0], OURS])
    how = (
        f"CPU, {entry.what}: {'; '.join(parts)}; medians of {repetitions} interleaved repetitions, the worst"
    )
    return _measurement(entry, max(ratios), how)


def _measurement(entry: IndexEntry, ratio: float | None, how: str) -> Measurement:
    return Measurement(
        name=entry.name,
        value=None if ratio is None else round(ratio, 3),
        unit=UNIT,
        target=entry.target,
        holds=None if ratio is None else ratio <= entry.target,
        peer=entry.peer,
        how=how,
    )
