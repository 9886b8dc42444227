"""What is claimed of the kv policy, and whether it holds: bars over seeds that nothing was tuned on.

A run's summary can be kept in a file of JSON lines, so that a long comparison may be stopped and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtests.fleet.policies import ORACLE, OURS, OWN, RIVALS
from loadtests.fleet.scenarios import GENERATED, Scenario, run_once, trace_scenario
from loadtests.fleet.summary import Summary, mean_summary

SEEDS = range(1, 6)
"""Reported. Tuning uses seeds from 101 on, and no trace from a file."""
POLICIES = (OURS, *(name for name in OWN if name in ("least_loaded", "round_robin")), *RIVALS, ORACLE)
TRACES = (
    ("conversation", 1.0),
    ("conversation", 2.5),
    ("conversation", 4.0),
    ("synthetic", 2.0),
    ("synthetic", 4.0),
)
LOWEST = ("agentic", "many_customers", "k3_16", "k3_64", "k3_256")
"""Generated workloads on which kv must have the lowest times; on the traces too."""
NO_REUSE = "no_reuse"
SHOWN = ("many_overload", "hot_prefix", "churn")
"""Compared without a bar."""
IMPAIRED = ("agentic", "conversation 2.5x")
IMPAIRED_SUFFIX = ", late and lossy"
LATE, LOSSY = 2.0, 0.01

NEAR_LOWEST = 1.03
NEAR_LEAST_LOADED = 1.02
NEAR_UNIMPAIRED = 1.15


class Bar(NamedTuple):
    """Holds when `ratio` is at most `limit`."""

    name: str
    ratio: float
    limit: float
    beside: str
    """What kv is compared with."""

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


def scenarios(traces: Path | None) -> dict[str, Scenario]:
    """By name; those from a trace only when the folder with Mooncake's traces is given."""
    found = {name: GENERATED[name] for name in (*LOWEST, NO_REUSE, *SHOWN)}
    if traces is not None:
        from_traces = [trace_scenario(traces / f"{stem}_trace.jsonl", speed) for stem, speed in TRACES]
        found |= {scenario.name: scenario for scenario in from_traces}
    for name in IMPAIRED:
        if name in found:
            fleet = msgspec.structs.replace(found[name].fleet, event_lag=LATE, event_loss=LOSSY)
            impaired = msgspec.structs.replace(found[name], name=name + IMPAIRED_SUFFIX, fleet=fleet)
            found[impaired.name] = impaired
    return found


def policies_for(scenario: Scenario) -> Sequence[str]:
    return (OURS,) if scenario.name.endswith(IMPAIRED_SUFFIX) else POLICIES


class Results:
    """Summaries of single runs, by workload, policy and seed."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._runs: dict[tuple[str, str, int], Summary] = {}
        if path is not None and path.exists():
            for line in path.read_bytes().splitlines():
                seed, summary = msgspec.json.decode(line, type=tuple[int, Summary])
                self._runs[summary.workload, summary.policy, seed] = summary

    def get(self, scenario: Scenario, policy: str, seed: int) -> Summary:
        """From the file, or from a run that is then added to it."""
        key = scenario.name, policy, seed
        if key not in self._runs:
            summary, _ = run_once(scenario, policy, seed)
            self._runs[key] = summary
            if self._path is not None:
                with self._path.open("ab") as file:
                    file.write(msgspec.json.encode((seed, summary)) + b"\n")
        return self._runs[key]


def compare(
    chosen: Iterable[Scenario], seeds: Sequence[int], results: Results, progress: Callable[[str], None]
) -> list[Summary]:
    """Means over seeds, of every policy on every scenario."""
    means = []
    for scenario in chosen:
        for policy in policies_for(scenario):
            means.append(mean_summary([results.get(scenario, policy, seed) for seed in seeds]))
            progress(f"{scenario.name}: {policy} {means[-1].mean:.3f} s")
    return means


def judge(means: Iterable[Summary]) -> list[Bar]:
    """Every bar for which the summaries are there."""
    by_workload: dict[str, dict[str, Summary]] = {}
    for summary in means:
        by_workload.setdefault(summary.workload, {})[summary.policy] = summary
    bars: list[Bar] = []
    for workload, policies in by_workload.items():
        whole = by_workload.get(workload.removesuffix(IMPAIRED_SUFFIX), {})
        if workload.endswith(IMPAIRED_SUFFIX):
            bars += _bars(workload, policies, {"unimpaired": whole[OURS]}, NEAR_UNIMPAIRED)
        elif workload == NO_REUSE:
            least_loaded = {name: each for name, each in policies.items() if name == "least_loaded"}
            bars += _bars(workload, policies, least_loaded, NEAR_LEAST_LOADED)
        elif workload not in SHOWN:
            others = {name: each for name, each in policies.items() if name not in (OURS, ORACLE)}
            bars += _bars(workload, policies, others, NEAR_LOWEST)
    return bars


def _bars(
    workload: str, policies: dict[str, Summary], others: dict[str, Summary], limit: float
) -> Iterable[Bar]:
    """Mean and p90 of kv over the lowest of the others."""
    for figure in ("mean", "p90"):
        name, lowest = min(
            ((name, float(getattr(summary, figure))) for name, summary in others.items()),
            key=lambda pair: pair[1],
        )
        yield Bar(f"{workload}: {figure}", getattr(policies[OURS], figure) / lowest, limit, name)
