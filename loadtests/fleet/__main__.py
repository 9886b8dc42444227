"""`python -m loadtests.fleet bars|referee`: what is claimed of the kv policy, measured.

Exit status: 0 all holds, 1 some does not, 2 wrong command line, 3 Dynamo's replay is absent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.fleet.bars import SEEDS, Results, compare, judge, scenarios
from loadtests.fleet.referee import (
    DYNAMO_ROUTERS,
    RefereeError,
    Setup,
    ask_dynamo,
    ask_simulation,
    judge_placements,
)
from loadtests.fleet.report import html_report
from loadtests.fleet.summary import table
from loadtests.fleet.trace import load_trace

_CASES = (("conversation", 1.0), ("conversation", 4.0), ("synthetic", 1.0))
_JUDGED = ("kv", "least_loaded", "llm_d", "multiplicative")
_REQUESTS = 2_000
_WITHIN = 0.25


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except RefereeError as error:
        print(f"loadtests.fleet: {error}", file=sys.stderr)
        return 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loadtests.fleet", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    bars = commands.add_parser("bars", help="kv beside all others on every workload")
    bars.add_argument("names", nargs="*", metavar="WORKLOAD", help="all when none is named")
    bars.add_argument("--traces", type=Path, metavar="DIR", help="folder with Mooncake's traces")
    bars.add_argument("--seeds", type=int, default=len(SEEDS), metavar="N", help="how many of the five")
    bars.add_argument("--results", type=Path, metavar="FILE", help="keep runs here, and do not repeat them")
    bars.add_argument("--html", type=Path, metavar="FILE", help="write a report")
    bars.set_defaults(run=_bars)
    referee = commands.add_parser("referee", help="beside Dynamo's own offline replay")
    referee.add_argument("--traces", type=Path, metavar="DIR", required=True)
    referee.set_defaults(run=_referee)
    return parser


def _bars(options: argparse.Namespace) -> int:
    known = scenarios(options.traces)
    if unknown := [name for name in options.names if name not in known]:
        print(f"no workload {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in options.names or known]
    means = compare(chosen, SEEDS[: options.seeds], Results(options.results), _progress)
    print(table(means))
    bars = judge(means)
    for bar in bars:
        verdict = "holds" if bar.holds else "FAILS"
        print(f"{verdict}  {bar.name}: {bar.ratio:.3f} x {bar.beside}, at most {bar.limit}")
    if options.html is not None:
        notes = [f"means over seeds {', '.join(map(str, SEEDS[: options.seeds]))}"]
        options.html.write_text(html_report("Routing policies", notes, means, {}))
    return 0 if all(bar.holds for bar in bars) else 1


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _referee(options: argparse.Namespace) -> int:
    """Per case: Dynamo's figures, ours for the same policy, and Dynamo's engines under our placements."""
    holds = True
    print(f"{'case':<18}{'policy':<16}{'who':<22}{'mean':>8}{'p90':>8}{'reuse':>8}")
    for stem, speed in _CASES:
        requests = load_trace(options.traces / f"{stem}_trace.jsonl", speed=speed, last=_REQUESTS)
        case, setup = f"{stem} {speed:g}x", Setup()
        dynamo = ask_dynamo(requests, setup)
        ours = {policy: ask_simulation(requests, setup, policy) for policy in DYNAMO_ROUTERS}
        for policy in DYNAMO_ROUTERS:
            _row(case, policy, "Dynamo", dynamo[policy])
            _row(case, policy, "simulation", ours[policy])
        for policy in _JUDGED:
            _row(case, policy, "placed, Dynamo engine", judge_placements(requests, setup, policy))
        ratios = [each["dynamo"].mean / each["round_robin"].mean for each in (dynamo, ours)]
        same_order = sorted(ours, key=lambda name: ours[name].mean) == sorted(
            dynamo, key=lambda name: dynamo[name].mean
        )
        print(f"{case}: dynamo / round_robin {ratios[0]:.3f} and {ratios[1]:.3f}, same order: {same_order}\n")
        holds &= same_order and abs(ratios[1] / ratios[0] - 1) <= _WITHIN
    return 0 if holds else 1


def _row(case: str, policy: str, who: str, verdict: tuple[float, float, float]) -> None:
    mean, p90, reuse = verdict
    print(f"{case:<18}{policy:<16}{who:<22}{mean:>8.3f}{p90:>8.3f}{reuse:>8.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
