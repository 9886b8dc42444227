"""`python -m tests.live.routing ENGINE... [--requests N]`: the proof, printed."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loadtests.proof.score import Outcome, Table, by_kind, explain, table
from tests.live.routing.rig import RoutingRig, Run
from tests.live.routing.workers import ENGINES

SHARE = 0.99


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.live.routing", description=__doc__)
    parser.add_argument("engines", nargs="+", choices=ENGINES, metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--only", choices=("sequential", "concurrent"))
    options = parser.parse_args(arguments)
    good = True
    for engine in options.engines:
        logs = Path(tempfile.mkdtemp(prefix=f"kvgateway-proof-{engine}-"))
        print(f"{engine}: logs in {logs}", flush=True)
        rig = RoutingRig(engine, logs)
        try:
            rig.start()
            if options.only != "concurrent":
                good &= show(engine, "one after another", rig.sequential(options.requests), 1.0)
            if options.only != "sequential":
                good &= show(engine, "8 clients, a worker restarted", rig.concurrent(options.requests), SHARE)
        finally:
            rig.stop()
    return 0 if good else 1


def show(engine: str, what: str, run: Run, share: float) -> bool:
    """Print a run; whether at least `share` were exact and each miss is explained."""
    whole = table(run.outcomes)
    rules = sorted({f"{each.worker}: {each.rule}" for each in run.outcomes[-40:] if each.rule})
    print(f"{engine}, {what}: {row(whole)}; {len(run.failed)} failed; {'; '.join(rules)}")
    for kind, counts in by_kind(run.outcomes).items():
        print(f"  {kind:9} {row(counts)}")
    explained = True
    for number, each in enumerate(run.outcomes):
        if not each.exact:
            why = explain(each, run.outcomes, run.down)
            explained &= bool(why)
            print(f"  miss {number}: {described(each)}: {why or 'UNEXPLAINED'}")
    for failure in run.failed:
        print(f"  failed: {failure}")
    sys.stdout.flush()
    return whole.exact >= share * whole.requests and explained and not run.failed


def described(miss: Outcome) -> str:
    return (
        f"{miss.ask.kind} of {len(miss.ask.prompt)} tokens on {miss.worker}: predicted {miss.predicted}, "
        f"reported {miss.reported}, attention {miss.attention}, by {miss.rule}"
    )


def row(counts: Table) -> str:
    return (
        f"{counts.exact} of {counts.requests} exact ({counts.hits} hits); "
        f"attention only: {counts.attention_exact} of {counts.scored} exact, {counts.attention_over} over"
    )


if __name__ == "__main__":
    sys.exit(main())
