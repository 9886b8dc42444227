"""Which server is measured with what, in which order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from loadtests.scorecard.bench import Bench
from loadtests.scorecard.entries import OURS, Entry, Phase
from loadtests.scorecard.evaluate import Measurement, Outcome, Sample, evaluate
from loadtests.scorecard.servers import AbsentError, Wrap


class Effort(msgspec.Struct, frozen=True):
    """How much is measured."""

    repetitions: int
    share: float = 1.0
    """Of a phase's requests, at least one a connection."""


QUICK = Effort(repetitions=5)
FULL = Effort(repetitions=15)

Key = tuple[str, str]
"""Phase name and server."""


def run_scorecard(
    entries: Sequence[Entry], effort: Effort, peers: Path, ours: Wrap = lambda launch: launch
) -> list[Measurement]:
    """Measure what the entries need, all in one run, and evaluate them."""
    with TemporaryDirectory(prefix="kvgateway-scorecard-") as work:
        try:
            with Bench(peers, Path(work), ours, {entry.server for entry in entries}) as bench:
                outcomes = _Run(bench, entries).measure(effort)
        except AbsentError as reason:
            outcomes = {key: Outcome(absent=str(reason)) for key in _keys(entries)}
    return [
        evaluate(entry, {server: o for (phase, server), o in outcomes.items() if phase == entry.phase.name})
        for entry in entries
    ]


def _keys(entries: Sequence[Entry]) -> list[Key]:
    """Every pair of phase and server that the entries need, once, ours first."""
    return list(
        dict.fromkeys(
            (entry.phase.name, server) for entry in entries for server in (entry.server, entry.peer)
        )
    )


class _Run:
    """Repetitions outside, phases and servers inside, so that a disturbance falls on all of them."""

    def __init__(self, bench: Bench, entries: Sequence[Entry]) -> None:
        self._bench = bench
        self._phases: dict[str, Phase] = {entry.phase.name: entry.phase for entry in entries}
        self._samples: dict[Key, list[Sample]] = {key: [] for key in _keys(entries)}
        self._absent: dict[Key, str] = {}

    def measure(self, effort: Effort) -> dict[Key, Outcome]:
        self._start()
        for repetition in range(effort.repetitions):
            for key in self._order(repetition):
                self._measure(key, effort.share)
        return {
            key: Outcome(absent=self._absent[key]) if key in self._absent else Outcome(samples)
            for key, samples in self._samples.items()
        }

    def _order(self, repetition: int) -> list[Key]:
        """Forwards and backwards in turn, so that none is always the first."""
        keys = list(self._samples)
        return keys if repetition % 2 == 0 else keys[::-1]

    def _start(self) -> None:
        """All servers at once; they come up side by side."""
        wanted = {(key[1], self._phases[key[0]].step_ms > 0) for key in self._samples}
        reasons: dict[tuple[str, bool], str] = {}
        for step in (self._bench.start, self._bench.wait_ready):
            for server, paced in sorted(wanted - reasons.keys()):
                _progress(f"{step.__name__} {server} ({'paced' if paced else 'fast'})")
                try:
                    step(server, paced)
                except AbsentError as reason:
                    reasons[server, paced] = str(reason)
        for phase, server in self._samples:
            reason_text = reasons.get((server, self._phases[phase].step_ms > 0))
            if reason_text is not None:
                self._absent[phase, server] = reason_text

    def _measure(self, key: Key, share: float) -> None:
        if key in self._absent or (key[0], OURS) in self._absent:
            return
        phase = self._phases[key[0]]
        requests = max(phase.concurrency, int(phase.requests * share))
        try:
            sample = self._bench.measure(key[1], phase, requests)
        except AbsentError as reason:
            self._absent[key] = str(reason)
            return
        self._samples[key].append(sample)
        _progress(f"{key[0]} {key[1]} {msgspec.to_builtins(sample)}")


def _progress(text: str) -> None:
    print(f"[scorecard] {text}", file=sys.stderr, flush=True)
