"""`kvgateway replay TRACE --policy a,b`: policies on a trace, side by side, in a simulated fleet."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from loadtests.fleet.fleet import FleetSpec
from loadtests.fleet.policies import OURS, POLICIES
from loadtests.fleet.report import html_report
from loadtests.fleet.scenarios import GENERATED, Scenario, run_once, trace_scenario
from loadtests.fleet.summary import Summary, mean_summary, table
from loadtests.fleet.trace import TraceError

_DEFAULT_POLICIES = f"{OURS},least_loaded,round_robin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command, for whoever has a parser."""
    parser.add_argument(
        "trace",
        metavar="TRACE",
        help=f"a file in Mooncake's format, or a built-in workload: {', '.join(GENERATED)}",
    )
    parser.add_argument(
        "--policy",
        metavar="A,B",
        default=_DEFAULT_POLICIES,
        help=f"of {', '.join(POLICIES)}; default {_DEFAULT_POLICIES}",
    )
    parser.add_argument("--html", metavar="FILE", default="replay.html", help="report; default replay.html")
    parser.add_argument("--seeds", metavar="N", type=_count, default=1, help="runs of each; default 1")
    parser.add_argument("--lag", metavar="SECONDS", type=float, help="until KV events arrive; default 0.05")
    parser.add_argument("--loss", metavar="SHARE", type=float, help="of KV event messages; default 0")
    parser.add_argument("--workers", metavar="N", type=_count, help="default 16")
    group = parser.add_argument_group("of a trace")
    group.add_argument(
        "--speed", metavar="X,Y", default="1", help="times its own pace, one table for each; default 1"
    )
    group.add_argument("--requests", metavar="FIRST:LAST", default=":", help="part of the trace; default all")
    group.add_argument(
        "--cache-tokens", metavar="N", type=_count, help="KV cache of a worker; default 2,048,000"
    )


def run(options: argparse.Namespace) -> int:
    """Print a table, write the report; exit status 2 when an argument makes no sense."""
    try:
        policies = _policies(options.policy)
        scenarios = _scenarios(options)
    except (ValueError, OSError) as error:
        print(f"kvgateway: {error}", file=sys.stderr)
        return 2
    summaries: list[Summary] = []
    waits: dict[tuple[str, str], list[float]] = {}
    for scenario in scenarios:
        for policy in policies:
            summary, ordered = _measure(scenario, policy, options.seeds)
            summaries.append(summary)
            waits[scenario.name, policy] = ordered
            print(f"{scenario.name}: {policy} done", file=sys.stderr)
    print(table(summaries), end="")
    notes = [_fleet_note(scenarios[0].fleet), f"{options.seeds} seed(s)", f"TRACE is {options.trace}"]
    Path(options.html).write_text(html_report("Routing policies side by side", notes, summaries, waits))
    print(f"report: {options.html}", file=sys.stderr)
    return 0


def _measure(scenario: Scenario, policy: str, seeds: int) -> tuple[Summary, list[float]]:
    results = [run_once(scenario, policy, seed) for seed in range(1, seeds + 1)]
    waits = sorted(
        record.ttft
        for _, fleet in results
        for record in fleet.records
        if record.request.arrival >= scenario.measure_from
    )
    return mean_summary([summary for summary, _ in results]), waits


def _policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in POLICIES]:
        raise ValueError(f"no policy {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    if not names:
        raise ValueError("no policy is named")
    return names


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    built_in = GENERATED.get(options.trace)
    if built_in is not None:
        return [msgspec.structs.replace(built_in, fleet=_with_options(built_in.fleet, options))]
    path = Path(options.trace)
    if not path.is_file():
        raise TraceError(f"{path} is no file and no built-in workload ({', '.join(GENERATED)})")
    fleet = _with_options(FleetSpec(), options)
    first, last = _part(options.requests)
    return [
        trace_scenario(path, speed, fleet=fleet, first=first, last=last) for speed in _speeds(options.speed)
    ]


def _with_options(fleet: FleetSpec, options: argparse.Namespace) -> FleetSpec:
    given = {"workers": options.workers, "event_lag": options.lag, "event_loss": options.loss}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.cache_tokens is not None:
        blocks = options.cache_tokens // fleet.engine.block_tokens
        changed["engine"] = msgspec.structs.replace(fleet.engine, capacity_blocks=blocks)
    return msgspec.structs.replace(fleet, **changed)


def _part(text: str) -> tuple[int, int | None]:
    first, colon, last = text.partition(":")
    if not colon:
        raise ValueError(f"--requests takes FIRST:LAST, not {text!r}")
    return int(first or 0), int(last) if last else None


def _speeds(text: str) -> list[float]:
    speeds = [float(speed) for speed in text.split(",")]
    if min(speeds) <= 0:
        raise ValueError("--speed takes numbers above 0")
    return speeds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return count


def _fleet_note(fleet: FleetSpec) -> str:
    engine = fleet.engine
    return (
        f"{fleet.workers} workers, {engine.capacity_blocks} blocks of {engine.block_tokens} tokens each, "
        f"events {fleet.event_lag:g} s late, {fleet.event_loss:.1%} of messages lost"
    )
